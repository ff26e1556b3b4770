from __future__ import annotations

from typing import Any

import pytest

from baton.core.handoff import Role, TransferMode
from baton.router.looks import other_server
from baton.router.pairing import why_misplaced, why_not_paired
from baton.router.worker import WorkerFacts, WorkerKind, WorkerSpec
from baton.wire.engine import PeerInfo
from tests.router.views import DECODE, MIXED, PREFILL, PULL, PUSH, facts


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (facts(PREFILL), facts(DECODE), ""),
        (facts(PREFILL, [PULL]), facts(DECODE, [PULL]), ""),
        (facts(PREFILL, [PULL]), facts(DECODE), ""),
        (facts(MIXED), facts(MIXED), ""),
        (facts(PREFILL, fingerprint=""), facts(DECODE), ""),
        (facts(PREFILL, models=()), facts(DECODE), ""),
        (facts(PREFILL, [PULL]), facts(DECODE, [PUSH]), "share no transfer mode: pull there, push here"),
        (facts(PREFILL), facts(DECODE, ()), "share no transfer mode: pull, push there, none here"),
        (facts(PREFILL, ()), facts(DECODE, ()), "neither has an endpoint for hand-offs"),
        (facts(PREFILL), facts(PREFILL), "a prefill worker cannot give to a prefill worker"),
        (facts(DECODE), facts(DECODE), "a decode worker cannot give"),
        (facts(PREFILL), facts(DECODE, fingerprint="other"), "weights differ: f and other"),
        (facts(PREFILL), facts(DECODE, models=("n", "o")), "different names: m and n, o"),
        (facts(PREFILL), facts(DECODE, kind=WorkerKind.OPENAI), "kind of server differs: baton there, openai here"),
        (facts(PREFILL, [PUSH], peer=None), facts(DECODE), "control endpoint is not known"),
        (facts(PREFILL, [PULL], peer=None), facts(DECODE), ""),
        (facts(PREFILL, peer=None), facts(DECODE), ""),  # by pull
    ],
)
def test_pairs_and_why_not(prefill: Any, decode: Any, words: str) -> None:
    reason = why_not_paired(prefill, decode)
    assert words in reason and bool(reason) == bool(words)


@pytest.mark.parametrize(
    ("prefill", "decode", "fits"),
    [
        (facts(PREFILL), facts(DECODE), {PUSH, PULL}),
        (facts(PREFILL, [PUSH]), facts(DECODE), {PUSH}),
        (facts(PREFILL), facts(DECODE, [PULL]), {PULL}),
        (facts(PREFILL, [PULL]), facts(DECODE, [PUSH]), set()),
        (facts(PREFILL, peer=None), facts(DECODE), {PULL}),  # nobody could be told where to wait for a push
        (facts(PREFILL), facts(DECODE, fingerprint="other"), set()),
    ],
)
def test_in_which_modes_a_pair_can_work(prefill: Any, decode: Any, fits: set[TransferMode]) -> None:
    assert {mode for mode in TransferMode if not why_not_paired(prefill, decode, frozenset([mode]))} == fits


def test_others_pair_only_where_their_specs_name_one_mode() -> None:
    def other(role: Role, mode: TransferMode | None = None) -> WorkerFacts:
        peer = PeerInfo(role=role, engine_id="e", host="h", port=1)
        return other_server(WorkerSpec(url="http://x", role=role, transfer_mode=mode, peer=peer), ("m",)).facts

    assert why_not_paired(other(PREFILL), other(DECODE, PUSH)) == ("they share no transfer mode: pull there, push here")
    assert why_not_paired(other(PREFILL), other(DECODE, PULL)) == ""  # pull, where nothing is said
    assert why_not_paired(other(PREFILL, PUSH), other(DECODE, PUSH)) == ""


def test_a_worker_that_was_named_with_another_role() -> None:
    assert why_misplaced(PREFILL, facts(DECODE)) == "it was named as a prefill worker, but says it is a decode worker"
    assert not why_misplaced(PREFILL, facts(MIXED)) and not why_misplaced(None, facts(DECODE))
