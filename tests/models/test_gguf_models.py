"""Tiny models of every family, written as GGUF by this test, against the transformers models they came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from baton.core.errors import ModelError
from baton.core.model_config import ModelConfig
from baton.core.rope_config import RopeKind
from baton.models.gguf import gguf_config, gguf_weights
from tests.models.harness import TINY, Cache, load, prompt, save_oracle

pytestmark = pytest.mark.torch

HEADS, KV_HEADS, LAYERS = TINY["num_attention_heads"], TINY["num_key_value_heads"], TINY["num_hidden_layers"]
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
SAME = (
    *("architecture", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
    *("vocab_size", "tie_word_embeddings", "attention_bias", "output_bias", "mlp_bias", "qk_norm", "moe", "dtype"),
    *("max_position_embeddings", "max_context"),
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, tuple[str, PreTrainedConfig]] = {
    "llama": ("llama", LlamaConfig(**TINY, tie_word_embeddings=False)),
    "llama tied, head_dim 32": ("llama", LlamaConfig(**TINY, head_dim=32, tie_word_embeddings=True)),
    "llama with biases": ("llama", LlamaConfig(**TINY, attention_bias=True, mlp_bias=True)),
    "llama3 rope": ("llama", LlamaConfig(**TINY, rope_parameters=LLAMA3_ROPE)),
    "qwen2": ("qwen2", Qwen2Config(**TINY, tie_word_embeddings=True)),
    "qwen3": ("qwen3", Qwen3Config(**TINY, head_dim=24)),
    "qwen3moe": ("qwen3moe", Qwen3MoeConfig(**TINY, head_dim=16, **MOE)),
}


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as llama files have them: within a head, row i of the first half is followed by row i of the second."""
    rows = len(weight) // heads
    order = [h * rows + half * (rows // 2) + i for h in range(heads) for i in range(rows // 2) for half in (0, 1)]
    return weight[order]


def stored(arch: str, config: PreTrainedConfig, state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a file: names from the gguf library's own table, experts fused, llama's q and k interleaved."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[arch], LAYERS)
    for name, tensor in state.items():
        base, _, suffix = name.rpartition(".")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = tensor.chunk(2, dim=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        elif name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", tensor
        else:
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(base.split(".")[-1])
            found = names.get_name(base)
            assert found is not None, name
            yield f"{found}.{suffix}", interleaved(tensor, heads) if heads and arch == "llama" else tensor


def write_model(path: Path, arch: str, config: PreTrainedConfig, oracle: Any, **changes: Any) -> Path:
    """The file a converter would write, with float32 tensors. `changes` are further metadata, or None to omit."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None)
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for key, value in changes.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{arch}.{key}", value)
    for name, tensor in stored(arch, config, oracle.state_dict()):
        writer.add_tensor(name, tensor.contiguous().numpy())
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(oracle, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_factors(oracle: Any, config: PreTrainedConfig) -> np.ndarray:
    """Unscaled over scaled frequencies, which is how converters store this scaling."""
    scaled = oracle.model.rotary_emb.inv_freq.double().numpy()
    theta, dim = config.rope_parameters["rope_theta"], 2 * len(scaled)
    return (theta ** (-np.arange(0, dim, 2) / dim) / scaled).astype(np.float32)


Made = tuple[Path, ModelConfig, Any, Path]


@pytest.fixture(params=CONFIGS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """(GGUF file, config from the folder, oracle, folder) of one family."""
    arch, config = CONFIGS[request.param]
    oracle = save_oracle(tmp_path / "hf", config)
    path = write_model(tmp_path / "model.gguf", arch, config, oracle)
    return path, load(tmp_path / "hf").config, oracle, tmp_path / "hf"


def test_config_equals_the_folder(made: Made) -> None:
    """Everything that decides the arithmetic; llama3 rope is stored as factors and is compared by its logits."""
    path, expected, _, _ = made
    ours = gguf_config(path)
    for name in SAME:
        assert getattr(ours, name) == getattr(expected, name), name
    assert ours.rms_norm_eps == pytest.approx(expected.rms_norm_eps, rel=1e-6)
    if expected.rope.kind is RopeKind.DEFAULT:
        assert ours.rope == expected.rope
    else:
        assert (ours.rope.kind, len(ours.rope.freq_factors)) == (RopeKind.DEFAULT, ours.head_dim // 2)


def test_tensors_are_exactly_the_originals(made: Made) -> None:
    path, config, oracle, _ = made
    ours = dict(gguf_weights(path, config))
    expected = {
        name: tensor
        for name, tensor in oracle.state_dict().items()
        if not (name == "lm_head.weight" and config.tie_word_embeddings)
    }
    for name in [name for name in expected if ".experts." in name]:
        fused = expected.pop(name)
        parts = {"gate_proj": fused[:, :32], "up_proj": fused[:, 32:]} if "gate_up" in name else {"down_proj": fused}
        prefix = name.rpartition(".")[0]
        expected |= {
            f"{prefix}.{e}.{part}.weight": weight[e] for part, weight in parts.items() for e in range(len(fused))
        }
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


def test_logits_equal_transformers(made: Made) -> None:
    """Through the whole loader, at positions where rope scaling shows."""
    path, _, oracle, _ = made
    tokens = prompt(200)
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    actual = Cache(load(path)).run(tokens, chunk=64)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


Write = Callable[..., Path]


@pytest.fixture
def write_llama(tmp_path: Path) -> Write:
    """A llama file with further metadata."""
    config = CONFIGS["llama"][1]

    def write(**changes: Any) -> Path:
        return write_model(tmp_path / "m.gguf", "llama", config, save_oracle(tmp_path / "hf", config), **changes)

    return write


def test_linear_rope(write_llama: Write) -> None:
    """The context in the file counts before stretching, as in a folder."""
    rope = gguf_config(write_llama(**{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})).rope
    assert (rope.kind, rope.factor, rope.context) == (RopeKind.LINEAR, 4.0, 4 * TINY["max_position_embeddings"])


def test_linear_rope_of_old_files(write_llama: Write) -> None:
    rope = gguf_config(write_llama(**{"rope.scale_linear": 2.0})).rope
    assert (rope.kind, rope.factor) == (RopeKind.LINEAR, 2.0)


def test_yarn_rope(write_llama: Write) -> None:
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 16.0}
    rope = gguf_config(write_llama(**{f"rope.scaling.{key}": value for key, value in keys.items()})).rope
    assert (rope.kind, rope.factor, rope.original_max_positions, rope.context) == (RopeKind.YARN, 4.0, 64, 256)
    assert (rope.beta_fast, rope.beta_slow, rope.attention_factor) == (16.0, 1.0, None)


def test_yarn_attention_factor(write_llama: Write) -> None:
    """ggml: cos and sin are multiplied by attn_factor * (1 + 0.1 ln factor); 0.5 * (1 + 0.1 ln 4) = 0.5693147."""
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "attn_factor": 0.5}
    rope = gguf_config(write_llama(**{f"rope.scaling.{key}": value for key, value in keys.items()})).rope
    assert rope.attention_factor == pytest.approx(0.5693147)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope.scaling.type": "longrope"}, "rope type 'longrope' is not supported; supported: none, linear, yarn"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, "original_context_length is missing"),
        ({"rope.dimension_count": 8}, "rotating 8 of 16 dimensions"),
        ({"expert_count": 8}, "experts in architecture 'llama'"),
        ({"attention.sliding_window": 32}, "sliding window"),
        ({"attention.scale": 0.5}, "attention.scale=0.5"),
        ({"attention.head_count_kv": 3}, "not a multiple"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], reason: str, write_llama: Write) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        gguf_config(write_llama(**changes))
    assert "\n" not in str(caught.value)


def test_other_architectures(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="architecture 'gemma3' is not supported; supported: llama, qwen2, qwen3, qw"):
        gguf_config(tmp_path / "x.gguf")


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"\x93NUMPY")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        gguf_config(tmp_path / "x.gguf")


def test_unknown_tensors(write_llama: Write) -> None:
    """A tensor that nothing would read means that the model is another one."""
    path = write_llama()
    path.write_bytes(path.read_bytes().replace(b"blk.0.ffn_norm.weight", b"blk.0.ffn_nose.weight"))
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_nose\.weight' .* no supported model"):
        gguf_weights(path, gguf_config(path))
