"""Resuming behind tokens that exist: a real model goes on as it went on when it had sampled them itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import RequestError
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.engine.build import EngineParts, build_engine
from baton.engine.options import EngineOptions
from tests.conftest import DEVICE

pytestmark = pytest.mark.torch

PROMPT = tuple(range(5, 42))
NUM_OUTPUT = 14
GRAMMAR = Grammar(kind=GrammarKind.REGEX, source="[a-c]{4}[0-9]{8,}")
FLAVOURS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 7, "top_p": 0.9},
    "penalties": {"seed": 3, "repetition_penalty": 1.4, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    "logprobs": {"seed": 4, "logprobs": 2},
    "min_tokens": {"seed": 5, "min_tokens": 12, "logit_bias": {65: 50.0}, "stop_token_ids": (65,)},
    "bad_words": {"seed": 8, "bad_words_token_ids": ((7,), (8, 9)), "logit_bias": {8: 5.0, 9: 5.0}},
    "grammar": {"seed": 6, "grammar": GRAMMAR},
}


@dataclass
class Answer:
    """What came for one request."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[tuple[int, float, int], ...] = ()
    reason: FinishReason | None = None

    def add(self, delta: SequenceDelta) -> None:
        """Take a delta in."""
        self.tokens += delta.token_ids
        self.logprobs += tuple((entry.token_id, round(entry.logprob, 3), entry.rank) for entry in delta.logprobs)
        self.reason = delta.finish_reason


def run(parts: EngineParts, requests: list[Request]) -> list[Answer]:
    """All at once."""
    answers = {request.request_id: Answer() for request in requests}
    for request in requests:
        parts.check(request)
        parts.engine.add(request)
    for _ in range(2000):
        if not parts.engine.has_work():
            break
        for delta in parts.engine.step():
            answers[delta.request_id].add(delta)
    parts.engine.check()
    assert parts.engine.stats().used_blocks == 0
    return list(answers.values())


def built(folder: Path, **options: Any) -> EngineParts:
    return build_engine(
        EngineOptions(model=str(folder), dtype="float32", device=DEVICE, max_model_len=64, block_size=4, **options)
    )


@pytest.fixture(scope="module")
def roomy(text_model: Path) -> Iterator[EngineParts]:
    parts = built(text_model, kv_cache_tokens=4096, max_num_batched_tokens=24, async_scheduling=True)
    yield parts
    parts.engine.shutdown()


@pytest.fixture(scope="module")
def tight(text_model: Path) -> Iterator[EngineParts]:
    """Room for two whole sequences and the beginning of a third, nothing shared."""
    parts = built(text_model, kv_cache_tokens=124, max_num_batched_tokens=24, enable_prefix_caching=False)
    yield parts
    parts.engine.shutdown()


def asked(flavour: str) -> Request:
    params = SamplingParams(max_tokens=NUM_OUTPUT, **{"ignore_eos": True, "seed": 1, **FLAVOURS[flavour]})
    return Request(request_id=flavour, prompt_token_ids=PROMPT, params=params, cache_salt=flavour)


@pytest.mark.parametrize("pool", ["roomy", "tight"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_resumed_at_every_place_it_goes_on_as_it_did(pool: str, flavour: str, request: pytest.FixtureRequest) -> None:
    parts: EngineParts = request.getfixturevalue(pool)
    preempted = parts.engine.stats().num_preemptions
    (whole,) = run(parts, [asked(flavour)])
    assert len(whole.tokens) >= 9 and whole.reason in (FinishReason.LENGTH, FinishReason.STOP)
    places = range(1, len(whole.tokens))
    resumed = [replace(asked(flavour), request_id=f"from {k}", resumed=whole.tokens[:k]) for k in places]
    for k, answer in zip(places, run(parts, resumed), strict=True):
        want = Answer(whole.tokens[k:], whole.logprobs[k:], whole.reason)
        assert answer == want, f"behind {k} tokens"
    assert pool == "roomy" or parts.engine.stats().num_preemptions > preempted


def test_what_the_grammar_does_not_allow_is_refused(roomy: EngineParts) -> None:
    with pytest.raises(RequestError, match="breaks the grammar at token 16") as caught:
        roomy.check(replace(asked("grammar"), resumed=(16,)))  # a digit, where the grammar wants a letter
    assert caught.value.param == "grammar"
