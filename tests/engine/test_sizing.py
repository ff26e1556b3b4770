"""Sizes are checked against arithmetic done by hand in each test."""

import pytest

from baton.core.errors import ConfigError
from baton.engine.sizing import CacheSize, size_cache


def size(**changes: object) -> CacheSize:
    values: dict[str, object] = {
        "block_tokens": 16,
        "bytes_per_token": 1000,
        "memory_bytes": 1_000_000,
        "kv_cache_tokens": None,
        "max_model_len": None,
        "model_max_len": 512,
        "max_num_seqs": 1,
    }
    return size_cache(**(values | changes))  # type: ignore[arg-type]


def test_a_few_times_what_the_sequences_need() -> None:
    assert size(memory_bytes=10_000_000) == CacheSize(num_blocks=4 * 32, max_model_len=512)


def test_memory_limits_the_default() -> None:
    assert size(max_num_seqs=64).num_blocks == 1000 // 16


def test_given_tokens_round_up_to_blocks() -> None:
    assert size(kv_cache_tokens=513).num_blocks == 33


def test_a_default_length_shrinks_to_the_cache() -> None:
    assert size(model_max_len=4096) == CacheSize(num_blocks=62, max_model_len=992)
    assert size(kv_cache_tokens=100) == CacheSize(num_blocks=7, max_model_len=112)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_model_len": 400, "kv_cache_tokens": 100}, "kv_cache_tokens allows 112 tokens"),
        ({"max_model_len": 400, "memory_bytes": 100_000}, "hold 96 tokens"),
        ({"memory_bytes": 10}, "lower max_model_len"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        size(**changes)
