"""Rope tables against transformers' frequencies and attention factors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from baton.core.rope_config import RopeConfig, RopeKind, rope_from_hf
from baton.layers.rope import RopeTable, attention_factor, inverse_frequencies

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "numbers",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}
        | {"original_max_position_embeddings": 1024},
        YARN,
        {**YARN, "factor": 0.5},
        {**YARN, "beta_fast": 8, "beta_slow": 3},
        {**YARN, "truncate": False},
        {**YARN, "attention_factor": 0.8},
        {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0},
        {**YARN, "mscale": 0.707},
        # The whole range of dimensions is one point: the ramp must not divide by zero.
        {**YARN, "original_max_position_embeddings": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("theta", [10000.0, 1e6])
def test_frequencies_equal_transformers(numbers: dict[str, Any], theta: float) -> None:
    numbers = {**numbers, "rope_theta": theta}
    hf = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=dict(numbers)
    )
    want, factor = ROPE_INIT_FUNCTIONS[numbers["rope_type"]](hf, CPU)
    rope = rope_from_hf({"rope_parameters": numbers}, head_dim=64, max_positions=4096)
    torch.testing.assert_close(inverse_frequencies(rope), want, rtol=1e-6, atol=0)
    assert attention_factor(rope) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("length", [65, 100, 256])
def test_dynamic_frequencies_equal_transformers_at_each_length(length: int) -> None:
    numbers = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    hf = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=64, rope_parameters=dict(numbers))
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](hf, CPU, seq_len=length)
    table = RopeTable(
        rope_from_hf({"rope_parameters": numbers}, head_dim=64, max_positions=64), 256, dtype=torch.float32, device=CPU
    )
    cos, sin = table(torch.tensor([length - 1]))
    torch.testing.assert_close(cos[0], ((length - 1) * want).cos(), rtol=0, atol=1e-4)
    torch.testing.assert_close(sin[0], ((length - 1) * want).sin(), rtol=0, atol=1e-4)


def test_table_does_not_depend_on_its_length() -> None:
    rope = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, rotary_dim=16, max_positions=32)
    positions = torch.tensor([0, 31, 32, 40])
    short, long = (RopeTable(rope, n, dtype=torch.float32, device=CPU)(positions) for n in (41, 64))
    # Vectorised and leftover elements of a table may differ in the last bit.
    torch.testing.assert_close(short, long, rtol=1e-6, atol=1e-6)


def test_positions_pick_rows() -> None:
    # theta 1 makes every frequency 1 radian per token.
    rope = RopeConfig(theta=1.0, rotary_dim=4, max_positions=8)
    cos, sin = RopeTable(rope, 8, dtype=torch.float32, device=CPU)(torch.tensor([3, 0, 3]))
    angles = torch.tensor([[3.0], [0.0], [3.0]]).expand(3, 2)
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())


def test_yarn_multiplies_cos_and_sin() -> None:
    rope = RopeConfig(kind=RopeKind.YARN, rotary_dim=4, max_positions=8, original_max_positions=8, attention_factor=2.0)
    cos, _ = RopeTable(rope, 1, dtype=torch.float32, device=CPU)(torch.tensor([0]))
    assert cos.tolist() == [[2.0, 2.0]]


def test_frequency_factors_divide() -> None:
    plain = RopeConfig(rotary_dim=4, max_positions=8)
    scaled = RopeConfig(rotary_dim=4, max_positions=8, freq_factors=(2.0, 4.0))
    torch.testing.assert_close(inverse_frequencies(scaled), inverse_frequencies(plain) / torch.tensor([2.0, 4.0]))


def test_tables_are_rounded_once_to_the_models_dtype() -> None:
    rope = RopeConfig(rotary_dim=8, max_positions=4096)
    whole, half = (
        RopeTable(rope, 4096, dtype=d, device=CPU)(torch.tensor([4095])) for d in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(whole[0].bfloat16(), half[0])
