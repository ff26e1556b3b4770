"""Seeded sampling is a function of (prompt, parameters, seed, index): batch, chunking and preemption change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from baton import LLM, SamplingParams
from tests.conftest import DEVICE
from tests.models.harness import TINY, prompt, save_oracle

pytestmark = pytest.mark.torch

NUM_OUTPUT = 40
BOUND = {"max_model_len": 160, "dtype": "float32", "device": DEVICE}
# One of each feature that reads the sequence's history or truncates the distribution.
FLAVOURS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 0.9, "presence_penalty": 0.8, "frequency_penalty": 0.5},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "logit_bias": {5: 2.0}, "bad_words_token_ids": [[7], [8, 9]]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_oracle(path, LlamaConfig(**TINY))
    return path


def cases(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of various lengths, each with its own seed and flavour."""
    return [
        (
            prompt(5 + 6 * i, seed=i),
            SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True, seed=1000 + i, **FLAVOURS[i % len(FLAVOURS)]),
        )
        for i in range(count)
    ]


def run(folder: Path, batch: list[tuple[list[int], SamplingParams]], **options: Any) -> list[list[list[int]]]:
    """Token ids by case and completion."""
    with LLM(folder, **BOUND, **options) as llm:
        results = llm.generate([tokens for tokens, _ in batch], [params for _, params in batch])
        llm.check()
        if "kv_cache_tokens" in options:
            assert llm.stats().num_preemptions > 0
        return [[completion.token_ids for completion in result.outputs] for result in results]


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[list[int]]]:
    """Each case in an engine of its own, plain loop, one chunk."""
    return [run(folder, [case], async_scheduling=False)[0] for case in cases(16)]


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"kv_cache_tokens": 160, "block_size": 4},
        {"enable_prefix_caching": False, "block_size": 8},
    ],
    ids=["batch-of-16", "chunks-of-7", "chunks-of-1", "preempted", "no-prefix-cache"],
)
def test_same_tokens_as_alone(
    folder: Path, alone: list[list[list[int]]], options: dict[str, Any], async_scheduling: bool
) -> None:
    assert run(folder, cases(16), async_scheduling=async_scheduling, **options) == alone


def test_seeds_and_indices_differ(folder: Path) -> None:
    tokens = prompt(20)
    params = [SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True, seed=seed, n=3) for seed in (1, 2)]
    first, second = run(folder, [(tokens, p) for p in params])
    assert len({tuple(ids) for ids in first + second}) == 6


@pytest.mark.parametrize("length", [15, 16, 17, 33])
@pytest.mark.parametrize("options", [{}, {"kv_cache_tokens": 160, "block_size": 4}], ids=["forked", "preempted"])
def test_each_of_n_is_what_a_smaller_n_gives(folder: Path, length: int, options: dict[str, Any]) -> None:
    """Completion i depends on (seed, i) only, so it is the same with n = i + 1 in an engine of its own."""
    params = {"max_tokens": NUM_OUTPUT, "ignore_eos": True, "seed": 7, "logprobs": 1}
    tokens = prompt(length)
    many = run(folder, [(tokens, SamplingParams(n=4, **params))] * 2, **options)
    assert many[0] == many[1]
    for n in (1, 2, 3):
        fewer = run(folder, [(tokens, SamplingParams(n=n, **params))], async_scheduling=False)
        assert fewer[0] == many[0][:n]


def test_requests_without_a_seed_differ_and_the_engine_seed_repeats_them(folder: Path) -> None:
    batch = [(prompt(20), SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True))] * 2
    first = run(folder, batch)
    assert first[0] != first[1]
    assert run(folder, batch) == first
    assert run(folder, batch, seed=1) != first
