"""A pair of engines gives the tokens of a single engine, and moves exactly the bytes it must: real processes, real
NIXL.

Each pairing of block sizes runs `cases()`, in push and in pull, with digests compared and freed blocks poisoned: over
200 prompts a mode. The single engine is the oracle; it has other block sizes and chunks than either of the two.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from baton import LLM, SamplingParams
from baton.core.request import Request
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.handoff_options import HandoffOptions
from tests.conftest import BYTES, DEVICE, END
from tests.models.harness import TINY
from tests.transfer.engines import FLOAT32, Answer, Pair, pair, running, together

pytestmark = pytest.mark.torch

SIZES = (8, 16, 32)
AT_ONCE = 6
CHUNK = 48
# Keys and values of all layers and heads of one token, in float32.
TOKEN_BYTES = (
    TINY["num_hidden_layers"] * 2 * TINY["num_key_value_heads"] * TINY["hidden_size"] // TINY["num_attention_heads"] * 4
)
VERIFIED = {"verify_handoff": True}

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, seed=0, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, max_tokens=12, seed=7)
CONSTRAINED = SamplingParams(
    temperature=1.0, max_tokens=16, seed=11, grammar=Grammar(kind=GrammarKind.REGEX, source="[a-f]{3}-[0-9]{4,9}")
)
if DEVICE != "cpu" and importlib.util.find_spec("xgrammar") is None:  # a machine without network
    CONSTRAINED = SEEDED
PARAMS = (
    GREEDY,
    SEEDED,
    SamplingParams(n=3, temperature=1.0, max_tokens=10, seed=8),
    SamplingParams(temperature=0.9, top_k=20, max_tokens=10, seed=9, presence_penalty=1.0, repetition_penalty=1.3),
    SamplingParams(temperature=1.0, max_tokens=10, seed=10, min_tokens=4, logprobs=2),
    CONSTRAINED,
    SamplingParams(temperature=0.0, max_tokens=1, seed=0),
)


@dataclass(frozen=True)
class Case:
    """A prompt, and how much of it each side has seen before (tokens)."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seen_by_prefill: int = 0
    seen_by_decode: int = 0


def cases(prefill_block: int, decode_block: int) -> list[Case]:
    """Prompts around the limits of both block sizes, with hits on either side, on both, and on none."""
    rng = random.Random(f"{prefill_block} {decode_block}")
    lengths = [1, 2, 150]
    for block in {prefill_block, decode_block}:
        lengths += [block - 1, block, block + 1, 3 * block, 4 * block + 3]
    found = [Case(text(rng, length), PARAMS[i % len(PARAMS)]) for i, length in enumerate(lengths)]
    for i, (on_prefill, on_decode) in enumerate(((96, 0), (0, 96), (96, 40), (40, 96), (96, 96), (50, 50))):
        prompt = text(rng, 96 if i % 2 else 100)
        found.append(Case(prompt, PARAMS[(i + 1) % len(PARAMS)], on_prefill, on_decode))
    found += [Case(text(rng, rng.randrange(1, 160)), PARAMS[i % len(PARAMS)]) for i in range(24 - len(found))]
    return found


def text(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(BYTES) for _ in range(length))


def request(name: str, prompt: Sequence[int], params: SamplingParams) -> Request:
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=params, eos_token_ids=frozenset({END}))


def tokens(answers: Sequence[Answer]) -> list[list[int]]:
    assert [answer.error for answer in answers] == [None] * len(answers)
    return [list(answer.token_ids) for answer in answers]


async def limited(runs: Sequence[Any]) -> list[list[Answer]]:
    """A few at once, so that they share steps."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(run: Any) -> list[Answer]:
        async with gate:
            answers: list[Answer] = await run
            return answers

    return await asyncio.gather(*(one(run) for run in runs))


async def warm_up(pair: Pair, found: Sequence[Case]) -> None:
    """Let the engines see what the cases say that they have seen."""
    short = replace(GREEDY, max_tokens=1)
    for case in found:
        for engine, seen in ((pair.prefill, case.seen_by_prefill), (pair.decode, case.seen_by_decode)):
            if seen:
                await engine.run(request(f"seen-{secrets.token_hex(8)}", case.prompt[:seen], short))


def expected_bytes(num_tokens: int, num_cached: int, prefill_block: int, decode_block: int) -> int:
    """What must cross: whole blocks if both sides have the same, else the tokens themselves."""
    missing = num_tokens - num_cached
    if prefill_block == decode_block:
        missing = -(-missing // decode_block) * decode_block
    return missing * TOKEN_BYTES


@pytest.fixture(scope="module")
def single(text_model: Path) -> Any:
    with LLM(text_model, **FLOAT32, block_size=4, enable_prefix_caching=False) as llm:
        yield llm


def oracle(single: LLM, found: Sequence[Case]) -> list[list[list[int]]]:
    outputs = single.generate([list(case.prompt) for case in found], [case.params for case in found])
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_tokens_and_bytes(text_model: Path, single: LLM, mode: str) -> None:
    """Three prefill and three decode engines of different block sizes: each hands over to each."""

    def engine(role: str, size: int) -> Any:
        handoff = HandoffOptions(role=role, verify_handoff=True)
        options = {"debug_poison": True, "max_num_batched_tokens": CHUNK, "kv_cache_tokens": 4096}
        return running(text_model, handoff, block_size=size, **options)

    async def body() -> None:
        async with together([engine(role, size) for role in ("prefill", "decode") for size in SIZES]) as engines:
            givers, takers = zip(SIZES, engines[:3], strict=True), list(zip(SIZES, engines[3:], strict=True))
            for giver_block, giver in givers:
                for taker_block, taker in takers:
                    await check_pairing(Pair(giver, taker, mode), single, giver_block, taker_block)
            for each in engines:
                assert each.local.client.stats.num_fallbacks == 0

    asyncio.run(body())


async def check_pairing(both: Pair, single: LLM, prefill_block: int, decode_block: int) -> None:
    """Tokens of all sequences, and bytes of all hand-offs."""
    found = cases(prefill_block, decode_block)
    assert len(found) == 24  # 9 pairings: 216 prompts a mode
    await warm_up(both, found)
    requests = [
        request(f"{prefill_block}-{decode_block}-{i}", case.prompt, case.params) for i, case in enumerate(found)
    ]
    answers = await limited([both.run(each) for each in requests])
    await both.prefill.idle()
    await both.decode.idle()
    assert [tokens(each) for each in answers] == oracle(single, found)
    for each, case, got in zip(requests, found, answers, strict=True):
        cached = got[0].num_cached_tokens
        assert cached >= case.seen_by_decode // decode_block * decode_block
        bytes_due = expected_bytes(len(case.prompt), cached, prefill_block, decode_block)
        assert both.record(each.request_id).num_bytes == bytes_due, (each.request_id, cached)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_logprobs_of_every_token(text_model: Path, single: LLM, mode: str) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=6, seed=3, logprobs=3, ignore_eos=True)
    prompt = text(random.Random(0), 37)
    want = single.generate([list(prompt)], params)[0].outputs[0]

    async def body() -> None:
        async with pair(text_model, mode, handoff=VERIFIED, debug_poison=True) as both:
            (got,) = await both.run(request("logprobs", prompt, params))
            assert list(got.token_ids) == list(want.token_ids)
            assert want.logprobs is not None and len(got.logprobs) == len(want.logprobs) == 6
            for ours, theirs in zip(got.logprobs, want.logprobs, strict=True):
                assert ours.token_id == theirs.token_id and ours.rank == theirs.rank
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
                assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]

    asyncio.run(body())


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_tiny_pools_and_preemption_on_both_sides(text_model: Path, single: LLM, mode: str) -> None:
    """Room for about two sequences: the decode engine preempts its own, the mixed giver those of its plain requests
    and, with them, prefills that are being handed over."""
    rng = random.Random(1)
    found = [Case(text(rng, rng.randrange(20, 90)), replace(PARAMS[i % 2], max_tokens=60)) for i in range(24)]
    plain = [Case(text(rng, 30), replace(GREEDY, max_tokens=80)) for _ in range(8)]

    async def body() -> None:
        options = {"debug_poison": True, "max_num_batched_tokens": 24, "kv_cache_tokens": 256, "block_size": 8}
        async with pair(text_model, mode, handoff={**VERIFIED, "role": "mixed"}, **options) as both:
            local = [both.prefill.run(request(f"plain-{i}", case.prompt, case.params)) for i, case in enumerate(plain)]
            handed = [both.run(request(f"case-{i}", case.prompt, case.params)) for i, case in enumerate(found)]
            own, answers = await asyncio.gather(limited(local), limited(handed))
            await both.prefill.idle()
            await both.decode.idle()
            assert [tokens(each) for each in answers] == oracle(single, found)
            assert [tokens(each) for each in own] == oracle(single, plain)
            for engine in (both.prefill, both.decode):
                assert engine.local.client.stats.num_preemptions > 0
            assert both.decode.local.client.stats.num_fallbacks == 0

    asyncio.run(body())
