"""Greedy tokens of the engine equal those of transformers, however the work is cut, mixed, reused or repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from baton import LLM, SamplingParams
from tests.conftest import DEVICE
from tests.models.harness import prompt, save_oracle
from tests.models.test_transformer import CONFIGS

pytestmark = pytest.mark.torch

NUM_OUTPUT = 64
LENGTHS = (90, 1, 16, 17, 33)
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True)
BOUND = {"max_model_len": 160, "dtype": "float32", "device": DEVICE}

RUNS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks-of-1": {"max_num_batched_tokens": 1},
    "chunks-of-7": {"max_num_batched_tokens": 7},
    "chunks-of-64": {"max_num_batched_tokens": 64},
    "no-prefix-cache": {"enable_prefix_caching": False, "block_size": 8},
    # 160 tokens are one sequence: with four more, somebody is preempted all the time.
    "preempted": {"kv_cache_tokens": 160, "block_size": 4, "max_num_batched_tokens": 48},
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A model folder and transformers' greedy outputs for the prompts."""
    folder = tmp_path_factory.mktemp("model")
    oracle = save_oracle(folder, CONFIGS[request.param]())
    return folder, [oracle_tokens(oracle, tokens) for tokens in prompts()]


def prompts() -> list[list[int]]:
    return [prompt(length, seed) for seed, length in enumerate(LENGTHS)]


def oracle_tokens(oracle: Any, tokens: list[int]) -> list[int]:
    """transformers' own greedy generation, not ended by any token."""
    greedy = GenerationConfig(do_sample=False, max_new_tokens=NUM_OUTPUT, pad_token_id=0)
    oracle.generation_config.eos_token_id = None
    ids = torch.tensor([tokens])
    out = oracle.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    return out[0, len(tokens) :].tolist()


def outputs(llm: LLM, batch: list[list[int]]) -> list[list[int]]:
    result = [output.token_ids for output in llm.generate(batch, GREEDY)]
    llm.check()
    return result


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("run", RUNS)
def test_greedy_tokens_equal_transformers(
    model: tuple[Path, list[list[int]]], run: str, async_scheduling: bool
) -> None:
    folder, want = model
    with LLM(folder, **BOUND, **RUNS[run], async_scheduling=async_scheduling) as llm:
        assert outputs(llm, prompts()) == want
        if run == "preempted":
            assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["plain", "async"])
def test_alone_and_with_a_prefix_hit(model: tuple[Path, list[list[int]]], async_scheduling: bool) -> None:
    folder, want = model
    with LLM(folder, **BOUND, block_size=16, async_scheduling=async_scheduling) as llm:
        assert outputs(llm, prompts()[:1]) == want[:1]
        again = llm.generate(prompts()[:1], GREEDY)[0]
        # 90 tokens are 5 full blocks of 16 and 10 more.
        assert again.num_cached_tokens == 80
        assert again.token_ids == want[0]
        # Prompt and outputs of the first run, 4 tokens short: the cache holds blocks of generated tokens too.
        longer = prompts()[0] + want[0][:-4]
        continued = llm.generate([longer], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))[0]
        assert continued.num_cached_tokens == (len(longer) - 1) // 16 * 16
        assert continued.token_ids == want[0][-4:]
        llm.check()
