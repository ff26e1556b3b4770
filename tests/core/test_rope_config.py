"""Rope settings out of config.json, old and new style. Right values: transformers' modeling_rope_utils."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.errors import ModelError
from baton.core.rope_config import RopeConfig, RopeKind, rope_from_hf


def read(**hf: Any) -> RopeConfig:
    return rope_from_hf(hf, head_dim=64, max_positions=4096)


def test_old_and_new_style_mean_the_same() -> None:
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
    new = read(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **numbers})
    assert new == read(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **numbers})
    assert new == read(rope_theta=5e5, rope_scaling={"type": "llama3", **numbers})
    assert (new.kind, new.theta, new.factor, new.original_max_positions) == (RopeKind.LLAMA3, 5e5, 8.0, 1024)


def test_defaults() -> None:
    assert read() == RopeConfig(rotary_dim=64, max_positions=4096)
    assert read(rope_scaling=None, rope_theta=1e6).theta == 1e6
    assert read(rope_scaling={"rope_type": "default"}).kind is RopeKind.DEFAULT


def test_yarn_falls_back_on_the_ratio_of_lengths_and_the_papers_betas() -> None:
    rope = read(rope_scaling={"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024})
    assert (rope.factor, rope.beta_fast, rope.beta_slow, rope.truncate) == (4.0, 32.0, 1.0, True)
    assert rope.attention_factor is None


def test_yarn_reads_every_number() -> None:
    numbers = {
        "factor": 3,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
        "attention_factor": 1.5,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    }
    rope = read(rope_scaling={"rope_type": "yarn", **numbers})
    assert {name: getattr(rope, name) for name in numbers} == numbers
    assert rope.original_max_positions == 4096


def test_original_length_beside_the_dictionary_wins() -> None:
    rope = read(
        original_max_position_embeddings=512,
        rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024},
    )
    assert rope.original_max_positions == 512


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "dynamic", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        # The recipe of Qwen's model cards: the declared maximum stays that of pre-training.
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1, "high_freq_factor": 4}, 4096),
    ],
)
def test_context(scaling: dict[str, Any], context: int) -> None:
    assert read(rope_scaling=scaling).context == context


@pytest.mark.parametrize(
    ("hf", "words"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "'longrope' is not supported.*llama3"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "'mrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs a number 'factor', got None"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "'low_freq_factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor must be positive"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "big"}}, "'yarn' needs a number 'factor', got 'big'"),
        ({"rope_scaling": {"rope_type": "yarn", "beta_fast": 0}}, "beta_fast must be positive, got 0.0"),
        ({"rope_theta": "x"}, "needs a number 'rope_theta', got 'x'"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"per layer type \(full_attention\)"),
    ],
)
def test_refusals_say_what(hf: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(**hf)


def test_odd_heads_cannot_be_rotated() -> None:
    with pytest.raises(ModelError, match="even number"):
        RopeConfig(rotary_dim=7, max_positions=16)


def test_frequency_factors_stand_alone() -> None:
    with pytest.raises(ModelError, match="cannot be combined with rope type 'linear'"):
        RopeConfig(kind=RopeKind.LINEAR, rotary_dim=4, max_positions=16, freq_factors=(1.0, 2.0))


def test_frequency_factors_must_fit_the_head() -> None:
    with pytest.raises(ModelError, match="expected 4 rope frequency factors, got 3"):
        RopeConfig(rotary_dim=8, max_positions=16, freq_factors=(1.0, 2.0, 3.0))
