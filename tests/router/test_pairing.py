from __future__ import annotations

from typing import Any

import pytest

from baton.router.pairing import why_misplaced, why_not_paired
from baton.router.worker import WorkerKind
from tests.router.views import DECODE, MIXED, PREFILL, PULL, PUSH, facts


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (facts(PREFILL), facts(DECODE), ""),
        (facts(PREFILL, PULL), facts(DECODE, PULL), ""),
        (facts(MIXED), facts(MIXED), ""),
        (facts(PREFILL, fingerprint=""), facts(DECODE), ""),
        (facts(PREFILL, models=()), facts(DECODE), ""),
        (facts(PREFILL, PULL), facts(DECODE, PUSH), "transfer mode differs: pull there, push here"),
        (facts(PREFILL), facts(DECODE, None), "transfer mode differs: push there, none here"),
        (facts(PREFILL, None), facts(DECODE, None), "--role"),
        (facts(PREFILL), facts(PREFILL), "a prefill worker cannot give to a prefill worker"),
        (facts(DECODE), facts(DECODE), "a decode worker cannot give"),
        (facts(PREFILL), facts(DECODE, fingerprint="other"), "weights differ: f and other"),
        (facts(PREFILL), facts(DECODE, models=("n", "o")), "different names: m and n, o"),
        (facts(PREFILL), facts(DECODE, kind=WorkerKind.OPENAI), "kind of server differs: baton there, openai here"),
        (facts(PREFILL, peer=None), facts(DECODE), "control endpoint is not known"),
        (facts(PREFILL, PULL, peer=None), facts(DECODE, PULL), ""),
    ],
)
def test_pairs_and_why_not(prefill: Any, decode: Any, words: str) -> None:
    reason = why_not_paired(prefill, decode)
    assert words in reason and bool(reason) == bool(words)


def test_a_worker_that_was_named_with_another_role() -> None:
    assert why_misplaced(PREFILL, facts(DECODE)) == "it was named as a prefill worker, but says it is a decode worker"
    assert not why_misplaced(PREFILL, facts(MIXED)) and not why_misplaced(None, facts(DECODE))
