"""Whole models against transformers: same folder, same tokens, float32 logits within 1e-4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from tests.models.harness import TINY, Cache, load, prompt, save_oracle

pytestmark = pytest.mark.torch

MOE = {**TINY, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**TINY),
    "llama-tied": lambda: LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama-mha": lambda: LlamaConfig(**{**TINY, "num_key_value_heads": 4}),
    "llama-mqa-wide-heads": lambda: LlamaConfig(**{**TINY, "num_key_value_heads": 1}, head_dim=24),
    "llama-biases": lambda: LlamaConfig(**TINY, attention_bias=True, mlp_bias=True),
    "mistral": lambda: MistralConfig(**TINY, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**TINY, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen2-tied": lambda: Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**TINY, head_dim=32),
    "qwen3-tied-biases": lambda: Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True, attention_bias=True),
    "qwen3moe": lambda: Qwen3MoeConfig(**MOE),
    "qwen3moe-normed-mixed": lambda: Qwen3MoeConfig(**MOE, norm_topk_prob=True, mlp_only_layers=[0]),
    "qwen3moe-sparse-step": lambda: Qwen3MoeConfig(**{**MOE, "num_hidden_layers": 3}, decoder_sparse_step=2),
    **{
        f"llama-{kind}": lambda kind=kind, numbers=numbers: LlamaConfig(
            **TINY, rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **numbers}
        )
        for kind, numbers in ROPES.items()
    },
    "qwen3-yarn-scales": lambda: Qwen3Config(
        **TINY,
        head_dim=32,
        rope_parameters={
            **ROPES["yarn"],
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "mscale": 0.7,
            "mscale_all_dim": 1.2,
            "beta_fast": 16,
            "beta_slow": 2,
            "truncate": False,
        },
    ),
    "qwen2-yarn-factor": lambda: Qwen2Config(
        **TINY, rope_parameters={**ROPES["yarn"], "rope_type": "yarn", "rope_theta": 1e4, "attention_factor": 1.3}
    ),
}


def oracle_logits(model: Any, tokens: list[int]) -> Tensor:
    """[tokens, vocab], all at once and without a cache."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers_in_any_chunking(name: str, tmp_path: Path) -> None:
    oracle = save_oracle(tmp_path, CONFIGS[name]())
    tokens = prompt(90)
    want = oracle_logits(oracle, tokens)
    loaded = load(tmp_path)
    for chunk in (90, 64, 7, 1):
        got = Cache(loaded).run(tokens, chunk)
        assert got.dtype == torch.float32
        close(got, want)


@pytest.mark.parametrize("name", ["llama", "qwen3moe-normed-mixed"])
def test_sequences_of_a_mixed_batch_do_not_touch_each_other(name: str, tmp_path: Path) -> None:
    oracle = save_oracle(tmp_path, CONFIGS[name]())
    a, b, c, d = (prompt(length, seed) for seed, length in enumerate((40, 23, 31, 9)))
    cache = Cache(load(tmp_path), seed=3)
    got: dict[int, list[Tensor]] = {}

    def step(*parts: tuple[int, list[int]]) -> None:
        for (sequence, _), logits in zip(parts, cache.step(parts), strict=True):
            got.setdefault(sequence, []).append(logits)

    step((0, a[:38]))
    step((0, a[38:39]), (1, b[:10]), (2, c[:1]))
    step((0, a[39:40]), (2, c[1:2]), (1, b[10:21]), (3, d))
    step((2, c[2:3]), (1, b[21:22]))
    step((1, b[22:23]), (2, c[3:]))
    for sequence, tokens in enumerate((a, b, c, d)):
        close(torch.cat(got[sequence]), oracle_logits(oracle, tokens))


def test_dynamic_rope_beyond_the_original_maximum_equals_decode_in_transformers(tmp_path: Path) -> None:
    config = LlamaConfig(
        **{**TINY, "max_position_embeddings": 32},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    )
    oracle = save_oracle(tmp_path, config)
    with torch.no_grad():
        out = oracle.generate(
            torch.tensor([[5]]),
            max_new_tokens=60,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens, want = out.sequences[0].tolist()[:-1], torch.cat(out.logits)
    assert len(tokens) == 60
    loaded = load(tmp_path)
    assert loaded.max_model_len == 128
    for chunk in (1, 7, 60):
        close(Cache(loaded).run(tokens, chunk), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(dtype: str, tmp_path: Path) -> None:
    oracle = save_oracle(tmp_path, CONFIGS["qwen3"]())
    tokens = prompt(50)
    want = oracle_logits(oracle, tokens)
    half = oracle_logits(oracle.to(getattr(torch, dtype)), tokens).float()
    loaded = load(tmp_path, dtype=dtype)
    got = Cache(loaded).run(tokens, 16)
    # No further from the truth than transformers is in the same format.
    assert (got - want).abs().mean() < 1.2 * (half - want).abs().mean()


def test_cache_specs_describe_the_pool(tmp_path: Path) -> None:
    save_oracle(tmp_path, CONFIGS["llama-mqa-wide-heads"]())
    (spec,) = load(tmp_path, dtype="bfloat16").model.cache_specs()
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dtype_bytes) == (2, 1, 24, 2)
