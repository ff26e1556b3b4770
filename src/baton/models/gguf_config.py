"""Reads the geometry of a model from the metadata and the tensor table of a GGUF file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from baton.core.errors import ModelError
from baton.core.model_config import ModelConfig, MoeConfig
from baton.core.rope_config import RopeConfig, RopeKind
from baton.models.gguf_tensors import check_types, dequantized, type_name
from baton.text.gguf_file import GgufFile, TensorInfo, read_gguf
from baton.text.gguf_tokenizer import gguf_eos_token_ids

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
"""Supported values of general.architecture and the Hugging Face class of each."""

# Multipliers of other models that share an architecture name; a value other than 1 (or 0 for off) changes the result.
_SCALES = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")
_ROPE_KINDS = {"none": RopeKind.DEFAULT, "linear": RopeKind.LINEAR, "yarn": RopeKind.YARN}
# Stored types that are number formats; anything quantised is served in bfloat16 unless asked otherwise.
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def gguf_config(path: Path) -> ModelConfig:
    """Geometry and arithmetic of the model in `path`.

    Raises:
        ModelError: no GGUF file, or an architecture, tensor type or rope type that is not supported; names it.
    """
    return config_of(read_gguf(path))


def config_of(file: GgufFile) -> ModelConfig:
    """The same for a header that is already read."""
    arch = file.require("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise ModelError(f"{file.path}: architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    check_types(file)
    _refuse(file, arch)
    heads = file.require(f"{arch}.attention.head_count", int)
    query, embedding = _tensor(file, "blk.0.attn_q.weight"), _tensor(file, "token_embd.weight")
    head_dim = file.get(f"{arch}.attention.key_length", int) or query.shape[0] // max(heads, 1)
    return ModelConfig(
        architecture=ARCHITECTURES[arch],
        hidden_size=file.require(f"{arch}.embedding_length", int),
        intermediate_size=file.require(f"{arch}.feed_forward_length", int),
        num_layers=file.require(f"{arch}.block_count", int),
        num_heads=heads,
        num_kv_heads=file.get(f"{arch}.attention.head_count_kv", int) or heads,
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        rope=_rope(file, arch, head_dim),
        rms_norm_eps=file.require(f"{arch}.attention.layer_norm_rms_epsilon", float),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        max_position_embeddings=file.require(f"{arch}.context_length", int),
        moe=_moe(file, arch),
        dtype=_DTYPES.get(type_name(query), "bfloat16"),
        eos_token_ids=_eos(file),
        bos_token_id=file.get("tokenizer.ggml.bos_token_id", int),
    )


def _eos(file: GgufFile) -> tuple[int, ...]:
    has_vocabulary = "tokenizer.ggml.tokens" in file.metadata
    return tuple(sorted(gguf_eos_token_ids(file))) if has_vocabulary else ()


def _tensor(file: GgufFile, name: str) -> TensorInfo:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError(f"{file.path}: tensor {name} is missing or no matrix; the file is incomplete")
    return tensor


def _refuse(file: GgufFile, arch: str) -> None:
    """Features that other models express under the same architecture name."""
    for key in _SCALES:
        value = file.get(f"{arch}.{key}", float)
        if value not in (None, 0.0, 1.0):
            raise ModelError(f"{file.path}: {arch}.{key}={value} is not supported; only models without it are")
    window = file.get(f"{arch}.attention.sliding_window", int)
    if window and window < file.require(f"{arch}.context_length", int):
        raise ModelError(f"{file.path}: sliding window attention ({window} tokens) is not supported")
    if arch != "qwen3moe" and (file.get(f"{arch}.expert_count", int) or 0) > 0:
        raise ModelError(f"{file.path}: experts in architecture {arch!r} are not supported; only in qwen3moe")
    key_dim, value_dim = (file.get(f"{arch}.attention.{name}_length", int) for name in ("key", "value"))
    if key_dim and value_dim and key_dim != value_dim:
        raise ModelError(f"{file.path}: keys of {key_dim} and values of {value_dim} dimensions are not supported")


def _moe(file: GgufFile, arch: str) -> MoeConfig | None:
    if arch != "qwen3moe":
        return None
    if file.get(f"{arch}.expert_shared_count", int):
        raise ModelError(f"{file.path}: shared experts are not supported")
    normed = file.get(f"{arch}.expert_weights_norm", bool)
    return MoeConfig(
        num_experts=file.require(f"{arch}.expert_count", int),
        top_k=file.require(f"{arch}.expert_used_count", int),
        intermediate_size=file.require(f"{arch}.expert_feed_forward_length", int),
        # The format leaves it out for this architecture: every published model of it has true.
        norm_topk_prob=True if normed is None else normed,
    )


def _rope(file: GgufFile, arch: str, head_dim: int) -> RopeConfig:
    rotary = file.get(f"{arch}.rope.dimension_count", int)
    if rotary not in (None, head_dim):
        raise ModelError(f"{file.path}: rotating {rotary} of {head_dim} dimensions of a head is not supported")
    name = file.get(f"{arch}.rope.scaling.type", str) or "none"
    # Before scaling had a type, files gave a linear factor only.
    old_linear = file.get(f"{arch}.rope.scale_linear", float) or 1.0
    if name == "none" and old_linear != 1.0:
        name = "linear"
    if name not in _ROPE_KINDS:
        raise ModelError(f"{file.path}: rope type {name!r} is not supported; supported: {', '.join(_ROPE_KINDS)}")
    for key in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if key in file.tensors:
            raise ModelError(f"{file.path}: rope type 'longrope' is not supported; supported: {', '.join(_ROPE_KINDS)}")
    kind = _ROPE_KINDS[name]
    factor = 1.0
    if kind is not RopeKind.DEFAULT:
        factor = file.get(f"{arch}.rope.scaling.factor", float) or old_linear
    factors = _freq_factors(file)
    if factors and kind is not RopeKind.DEFAULT:
        raise ModelError(f"{file.path}: rope type {name!r} together with rope_freqs.weight is not supported")
    return RopeConfig(
        kind=kind,
        theta=file.get(f"{arch}.rope.freq_base", float) or 10000.0,
        rotary_dim=head_dim,
        max_positions=file.require(f"{arch}.context_length", int),
        factor=factor,
        freq_factors=factors,
        **(_yarn(file, arch, factor) if kind is RopeKind.YARN else {}),
    )


def _yarn(file: GgufFile, arch: str, factor: float) -> dict[str, Any]:
    """YaRN numbers. llama.cpp multiplies cos and sin by attn_factor * (1 + 0.1 ln factor), as ggml's rope does."""
    prefix = f"{arch}.rope.scaling."
    if file.get(prefix + "yarn_log_multiplier", float):
        raise ModelError(f"{file.path}: {prefix}yarn_log_multiplier is not supported")
    if file.get(prefix + "yarn_ext_factor", float) not in (None, -1.0, 1.0):
        raise ModelError(f"{file.path}: {prefix}yarn_ext_factor other than 1 is not supported")
    attention = 1.0
    for key in ("attn_factor", "yarn_attn_factor"):
        attention *= file.get(prefix + key, float) or 1.0
    numbers: dict[str, Any] = {"original_max_positions": file.require(prefix + "original_context_length", int)}
    for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        value = file.get(prefix + theirs, float)
        if value is not None:
            numbers[ours] = value
    if attention != 1.0:
        numbers["attention_factor"] = attention * (1.0 + 0.1 * math.log(factor))
    return numbers


def _freq_factors(file: GgufFile) -> tuple[float, ...]:
    """rope_freqs.weight: each rotation frequency is divided by its factor (how llama3 scaling is stored)."""
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return ()
    factors = np.asarray(dequantized(file, info), dtype=np.float64).reshape(-1)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelError(f"{file.path}: rope_freqs.weight must hold positive numbers")
    return () if (factors == 1.0).all() else tuple(factors.tolist())
