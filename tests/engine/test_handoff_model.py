"""A landed sequence on a real model: everything that depends on its first token goes on from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import EngineDeadError
from baton.core.exchange import FirstToken, Grant, Landed, Prefilled, Reserve, Settled
from baton.core.handoff import FailurePolicy, Handoff, PeerAddress
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.engine.engine import Engine
from baton.engine.executor import ThreadExecutor, runner_thread
from baton.engine.load import LoadedRunner, load_runner
from baton.engine.options import EngineOptions
from baton.engine.poison import Poison
from baton.engine.storage import POISON
from baton.sched.scheduler import Scheduler
from baton.text.tokenizer import load_tokenizer
from tests.conftest import DEVICE

pytestmark = pytest.mark.torch

PROMPT = tuple(range(5, 42))
SOURCE = PeerAddress(host="giver", port=1)
FLAVOURS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 7, "n": 3},
    "penalties": {"seed": 3, "repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    "logprobs": {"seed": 4, "logprobs": 2},
    "min_tokens": {"seed": 5, "min_tokens": 9, "logit_bias": {65: 50.0}, "stop_token_ids": (65,)},
    "grammar": {"seed": 6, "grammar": Grammar(kind=GrammarKind.REGEX, source="[a-c]{4}[0-9]{8,}")},
}


@dataclass
class Rig:
    engine: Engine
    loaded: LoadedRunner

    def run(self) -> list[SequenceDelta]:
        deltas: list[SequenceDelta] = []
        for _ in range(200):
            if not self.engine.has_work():
                return deltas
            deltas += self.engine.step()
        raise AssertionError("the engine never rests")


def rig(folder: Path) -> Rig:
    options = EngineOptions(
        model=str(folder), dtype="float32", device=DEVICE, max_model_len=64, kv_cache_tokens=1024, block_size=16
    )
    thread = runner_thread()
    loaded = thread.submit(load_runner, options, DEVICE, load_tokenizer(folder)).result()
    cache = CacheManager(CacheConfig(block_tokens=16, num_blocks=loaded.size.num_blocks))
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24, max_model_len=64)
    executor = ThreadExecutor(loaded.runner, thread)
    scheduler = Scheduler(limits, cache, FailurePolicy.RECOMPUTE)
    poison = Poison(loaded.runner, executor, cache.pool)
    return Rig(Engine(scheduler, executor, async_scheduling=True, poison=poison), loaded)


@pytest.fixture(scope="module")
def pair(text_model: Path) -> Iterator[tuple[Rig, Rig]]:
    rigs = rig(text_model), rig(text_model)
    yield rigs
    for each in rigs:
        each.engine.shutdown()


def outputs(deltas: list[SequenceDelta], request_id: str) -> dict[int, list[Any]]:
    """Tokens and logprobs by sequence, and how it ended."""
    found: dict[int, list[Any]] = {}
    for delta in deltas:
        if delta.request_id == request_id:
            seq = found.setdefault(delta.index, [[], [], None])
            seq[0] += delta.token_ids
            seq[1] += [(entry.token_id, round(entry.logprob, 3), entry.rank) for entry in delta.logprobs]
            seq[2] = delta.finish_reason
    return found


def hand_over(
    giver: Rig,
    taker: Rig,
    request: Request,
    tokens: int,
    first: tuple[FirstToken, ...] | None = None,
    *,
    given: int | None = None,
) -> list[SequenceDelta]:
    """Both legs, `tokens` of the prompt carried over. Returns the decode leg's deltas.

    given: n of the prefill leg, where it is not that of the request.
    """
    prefill = replace(
        request.params, n=given or request.params.n, max_tokens=1, min_tokens=min(1, request.params.min_tokens)
    )
    name = request.request_id
    giver.engine.add(replace(request, params=prefill, handoff=Handoff(transfer_id=name)))
    taker.engine.add(replace(request, handoff=Handoff(transfer_id=name, source=SOURCE)))
    giver.run()
    deltas = taker.run()
    said = giver.engine.commands()
    (grant,) = [command for command in said if isinstance(command, Grant)]
    (prefilled,) = [command for command in said if isinstance(command, Prefilled)]
    (reserve,) = [command for command in taker.engine.commands() if isinstance(command, Reserve)]
    sources = grant.block_ids[reserve.num_cached_tokens // 16 :]
    for place, (source, target) in enumerate(zip(sources, reserve.block_ids, strict=True)):
        count = min(16, tokens - reserve.num_cached_tokens - 16 * place)
        with torch.inference_mode():
            taker.loaded.kv[target, :, :, :, :count] = giver.loaded.kv[source, :, :, :, :count]
    giver.engine.deliver(Settled(pin=grant.pin))
    deltas += taker.engine.deliver(Landed(transfer_id=name, first_tokens=first or prefilled.first_tokens))
    taker.engine.deliver(Settled(pin=reserve.pin))
    return deltas + taker.run()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_decode_leg_yields_what_the_giver_would_yield_alone(pair: tuple[Rig, Rig], flavour: str) -> None:
    giver, taker = pair
    params = SamplingParams(max_tokens=12, ignore_eos=True, **FLAVOURS[flavour])
    request = Request(request_id=flavour, prompt_token_ids=PROMPT, params=params, cache_salt=flavour)
    landed = outputs(hand_over(giver, taker, request, len(PROMPT)), flavour)
    alone = replace(request, request_id=f"{flavour} alone")
    giver.engine.add(alone)
    assert landed == outputs(giver.run(), alone.request_id)
    assert all(len(tokens) >= 5 for tokens, _, _ in landed.values())
    for each in pair:
        each.engine.check()
        assert each.engine.stats().used_blocks == 0


@pytest.mark.parametrize("length", [5, 16, 37, 48])
@pytest.mark.parametrize("flavour", ["seeded", "logprobs", "penalties", "grammar"])
def test_siblings_whose_first_token_does_not_come_sample_it_here(
    pair: tuple[Rig, Rig], flavour: str, length: int
) -> None:
    """A router asks for one token only (n 1): the draw depends on seed and index, so it is the same here."""
    giver, taker = pair
    name = f"{flavour} of {length}"
    params = SamplingParams(max_tokens=9, ignore_eos=True, **{**FLAVOURS[flavour], "n": 3})
    request = Request(request_id=name, prompt_token_ids=tuple(range(5, 5 + length)), params=params, cache_salt=name)
    landed = outputs(hand_over(giver, taker, request, length, given=1), name)
    alone = replace(request, request_id=f"{name} alone")
    giver.engine.add(alone)
    assert landed == outputs(giver.run(), alone.request_id) and len(landed) == 3
    assert len({tuple(tokens) for tokens, _, _ in landed.values()}) > 1
    for each in pair:
        each.engine.check()
        assert each.engine.stats().used_blocks == 0


def test_a_first_token_that_the_grammar_cannot_follow_ends_its_sequence_and_no_other(pair: tuple[Rig, Rig]) -> None:
    giver, taker = pair
    params = SamplingParams(max_tokens=12, ignore_eos=True, **FLAVOURS["grammar"])
    request = Request(request_id="bad", prompt_token_ids=PROMPT, params=params, cache_salt="bad")
    other = replace(request, request_id="other", params=replace(params, grammar=None, max_tokens=5))
    taker.engine.add(other)
    digit = 16  # "1" in the byte-level alphabet, where the grammar wants a letter
    deltas = hand_over(giver, taker, request, len(PROMPT), (FirstToken(index=0, token_id=digit),))
    bad = outputs(deltas, "bad")[0]
    assert (bad[0], bad[2]) == ([digit], FinishReason.ERROR)
    assert deltas[-1].error is None and taker.engine.stats().used_blocks == 0
    # Its slot is as good as before.
    again = replace(request, request_id="again", cache_salt="again")
    assert outputs(hand_over(giver, taker, again, len(PROMPT)), "again")[0][2] is FinishReason.LENGTH


def test_poison_is_found_where_nothing_was_written(text_model: Path, pair: tuple[Rig, Rig]) -> None:
    giver, _ = pair
    taker = rig(text_model)
    request = Request(
        request_id="p", prompt_token_ids=PROMPT, params=SamplingParams(max_tokens=3, seed=1), cache_salt="p"
    )
    with pytest.raises(EngineDeadError, match="left 2 of 37 tokens unwritten"):
        hand_over(giver, taker, request, len(PROMPT) - 2)
    taker.engine.shutdown()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_pattern_is_exact_in_every_dtype_of_a_cache(dtype: torch.dtype) -> None:
    assert float(torch.tensor(POISON, dtype=dtype)) == POISON
