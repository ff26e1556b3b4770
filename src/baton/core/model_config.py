"""What a model is: geometry and arithmetic, read from a Hugging Face config.json. No weights, no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from baton.core.errors import ModelError
from baton.core.rope_config import RopeConfig, rope_from_hf

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Supported number formats of weights and KV, and their size."""

# No real model comes near; a damaged config.json does.
_MOST, _MOST_LAYERS = 2**31 - 1, 4096

# What transformers assumes when config.json leaves a field out (configuration_*.py of each model type).
_LLAMA = {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2}
_QWEN = {"max_position_embeddings": 32768, "num_key_value_heads": 32}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": {
        **_LLAMA,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "Qwen2ForCausalLM": {**_QWEN, "sliding_window": 4096, "max_window_layers": 28},
    "Qwen3ForCausalLM": {**_QWEN, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "Qwen3MoeForCausalLM": {**_QWEN, "sliding_window": 4096, "num_key_value_heads": 4},
}
_MOE_DEFAULTS = {
    "num_local_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
}
_BY_MODEL_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The expert layers of a mixture-of-experts model.

    Attributes:
        num_experts: experts of a layer.
        top_k: experts of a token.
        intermediate_size: ffn width of one expert.
        norm_topk_prob: the chosen experts' probabilities are scaled to sum to 1.
        decoder_sparse_step, mlp_only_layers: which layers have experts, see `ModelConfig.is_moe_layer`.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer with full attention in every layer.

    Attributes:
        architecture: Hugging Face's class name, such as "LlamaForCausalLM".
        head_dim: not always hidden_size / num_heads.
        attention_bias: q, k and v projections have a bias.
        output_bias: the attention's output projection has one.
        mlp_bias: gate, up and down projections have one.
        qk_norm: RMS norm over each head of q and k before rope.
        max_position_embeddings: as declared; `max_context` is what can be served.
        dtype: number format the checkpoint declares, a key of DTYPE_BYTES.
        eos_token_ids: generation_config.json's when it has any, else config.json's.
        initializer_range: standard deviation of random weights.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope: RopeConfig
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_position_embeddings: int
    moe: MoeConfig | None = None
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        if self.architecture not in _DEFAULTS:
            raise ModelError(_unsupported("architecture", self.architecture, _DEFAULTS))
        if self.dtype not in DTYPE_BYTES:
            raise ModelError(_unsupported("dtype", self.dtype, DTYPE_BYTES))
        names = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
        for name in (*names, "intermediate_size", "max_position_embeddings"):
            if not 1 <= getattr(self, name) <= _MOST:
                raise ModelError(f"{name} must be between 1 and {_MOST}, got {getattr(self, name)}")
        if self.num_layers > _MOST_LAYERS:
            raise ModelError(f"num_layers must be at most {_MOST_LAYERS}, got {self.num_layers}")
        if not 0 < self.rms_norm_eps < 1:
            raise ModelError(f"rms_norm_eps must be between 0 and 1, got {self.rms_norm_eps}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )
        if self.moe and not 1 <= self.moe.top_k <= self.moe.num_experts:
            raise ModelError(f"num_experts_per_tok={self.moe.top_k} must be 1 to num_experts={self.moe.num_experts}")
        if self.moe and self.moe.decoder_sparse_step < 1:
            raise ModelError(f"decoder_sparse_step must be at least 1, got {self.moe.decoder_sparse_step}")

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence the model was made for, rope stretching included."""
        return self.rope.context

    def is_moe_layer(self, layer: int) -> bool:
        """Whether this layer (from 0) has experts in place of a dense MLP."""
        if self.moe is None or layer in self.moe.mlp_only_layers:
            return False
        return (layer + 1) % self.moe.decoder_sparse_step == 0

    def fingerprint(self, dtype: str | None = None) -> str:
        """Stable hash (32 hex digits) of everything in the config that decides the values and geometry of KV.

        Weights are not looked at: two fine-tunes of one architecture have the same fingerprint.

        Args:
            dtype: number format it is served in, when not the declared one.
        """
        facts = asdict(self)
        for name in ("eos_token_ids", "bos_token_id", "initializer_range", "max_position_embeddings"):
            del facts[name]
        facts["dtype"] = dtype or self.dtype
        text = json.dumps(facts, sort_keys=True, default=_enum_value)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """Read the contents of config.json and, where there is one, generation_config.json.

        Raises:
            ModelError: something the model needs is not supported or not given; names it.
        """
        architecture = _architecture(config)
        hf = {**_DEFAULTS[architecture], **config}
        _refuse(hf)
        heads = _int(hf, "num_attention_heads")
        head_dim = _int(hf, "head_dim") if hf.get("head_dim") is not None else _int(hf, "hidden_size") // heads
        positions = _int(hf, "max_position_embeddings")
        rope = rope_from_hf(hf, head_dim=head_dim, max_positions=positions)
        _refuse_sliding_window(hf, architecture, rope.context)
        eos = (generation or {}).get("eos_token_id")
        return cls(
            architecture=architecture,
            hidden_size=_int(hf, "hidden_size"),
            intermediate_size=_int(hf, "intermediate_size"),
            num_layers=_int(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_int(hf, "num_key_value_heads") if hf.get("num_key_value_heads") is not None else heads,
            head_dim=head_dim,
            vocab_size=_int(hf, "vocab_size"),
            rope=rope,
            rms_norm_eps=_float(hf, "rms_norm_eps", 1e-6),
            tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
            **_biases(hf, architecture),
            qk_norm=architecture.startswith("Qwen3"),
            max_position_embeddings=positions,
            moe=_moe(hf) if architecture == "Qwen3MoeForCausalLM" else None,
            dtype=_dtype(hf),
            eos_token_ids=_ids(eos if eos is not None else hf.get("eos_token_id")),
            bos_token_id=next(iter(_ids(hf.get("bos_token_id"))), None),
            initializer_range=_float(hf, "initializer_range", 0.02),
        )


def supported_architectures() -> tuple[str, ...]:
    """Hugging Face class names that can be served."""
    return tuple(_DEFAULTS)


def _architecture(config: Mapping[str, Any]) -> str:
    names = _names(config, "architectures") or [_BY_MODEL_TYPE.get(str(config.get("model_type")))]
    for name in names:
        if name in _DEFAULTS:
            return str(name)
    found = ", ".join(str(name) for name in names if name) or str(config.get("model_type"))
    raise ModelError(_unsupported("architecture", found, _DEFAULTS))


def _names(config: Mapping[str, Any], field: str) -> list[Any]:
    """A list of names, or nothing."""
    value = config.get(field) or []
    if not isinstance(value, list):
        raise ModelError(f"{field} must be a list, got {value!r}")
    return value


def _refuse(hf: Mapping[str, Any]) -> None:
    quantization = hf.get("quantization_config") or hf.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else quantization
        raise ModelError(
            f"quantization_config {method!r} is not supported; supported: unquantised safetensors, or a .gguf file"
        )
    act = hf.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise ModelError(_unsupported("hidden_act", act, ("silu",)))


def _refuse_sliding_window(hf: Mapping[str, Any], architecture: str, context: int) -> None:
    """Every layer must see the whole context; a window that never bites is fine."""
    other = sorted({str(kind) for kind in _names(hf, "layer_types")} - {"full_attention"})
    if other and architecture.startswith(("Qwen2", "Qwen3")) and architecture != "Qwen3MoeForCausalLM":
        raise ModelError(f"layer_types {', '.join(other)} are not supported; supported: full_attention")
    window = hf.get("sliding_window")
    if window is None or window >= context or architecture == "LlamaForCausalLM":
        return
    if architecture != "MistralForCausalLM" and not hf.get("use_sliding_window", False):
        return
    # Qwen2 and Qwen3 apply the window from this layer on; an explicit layer_types was checked above.
    first = 0 if "max_window_layers" not in hf else _int(hf, "max_window_layers")
    if not hf.get("layer_types") and first < _int(hf, "num_hidden_layers"):
        raise ModelError(f"sliding_window={window} is not supported; set it to null to attend to the whole context")


def _biases(hf: Mapping[str, Any], architecture: str) -> dict[str, bool]:
    """Which projections have a bias: fixed for Qwen2 and Mistral, declared for the others."""
    if architecture == "Qwen2ForCausalLM":
        return {"attention_bias": True, "output_bias": False, "mlp_bias": False}
    if architecture == "MistralForCausalLM":
        return {"attention_bias": False, "output_bias": False, "mlp_bias": False}
    attention = bool(hf.get("attention_bias", False))
    mlp = architecture == "LlamaForCausalLM" and bool(hf.get("mlp_bias", False))
    return {"attention_bias": attention, "output_bias": attention, "mlp_bias": mlp}


def _moe(hf: Mapping[str, Any]) -> MoeConfig | None:
    hf = {**_MOE_DEFAULTS, **hf}
    # Newer files may use the second name.
    experts = _int(hf, "num_experts") if "num_experts" in hf else _int(hf, "num_local_experts")
    if not experts:
        return None
    return MoeConfig(
        num_experts=experts,
        top_k=_int(hf, "num_experts_per_tok"),
        intermediate_size=_int(hf, "moe_intermediate_size"),
        norm_topk_prob=bool(hf.get("norm_topk_prob", False)),
        decoder_sparse_step=_int(hf, "decoder_sparse_step"),
        mlp_only_layers=tuple(hf.get("mlp_only_layers") or ()),
    )


def _dtype(hf: Mapping[str, Any]) -> str:
    return str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, int) for v in values):
        raise ModelError(f"expected token ids, got {value!r}")
    return tuple(values)


def _int(hf: Mapping[str, Any], name: str) -> int:
    value = hf.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"config.json needs an integer {name!r}, got {value!r}")
    return value


def _float(hf: Mapping[str, Any], name: str, default: float) -> float:
    value = hf.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"config.json needs a number {name!r}, got {value!r}")
    return float(value)


def _unsupported(what: str, got: object, supported: Mapping[str, Any] | tuple[str, ...]) -> str:
    return f"{what} {got!r} is not supported; supported: {', '.join(supported)}"


def _enum_value(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value
