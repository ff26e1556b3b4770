"""Who serves what: every rule of HANDOFF's section on the router that concerns placing."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.handoff import TransferMode
from baton.router.choosing import Choice, Rules, choose, choose_decode
from baton.router.config import Mode
from baton.router.demand import Demand
from baton.router.policies import free_blocks, least_tokens
from baton.router.view import WorkerView, has_room, matched_tokens
from baton.web.errors import ApiError
from tests.router.views import DECODE, MIXED, PREFILL, PULL, PUSH, demand, view

P, D, M = view("p", PREFILL), view("d", DECODE), view("m", MIXED, ())
FULL = {"num_requests": 6}  # 4 run, 2 may wait


def rules(mode: Mode = Mode.AUTO, **changes: Any) -> Rules:
    return Rules(mode=mode, prefill=least_tokens, decode=free_blocks, **changes)


def chosen(
    *workers: WorkerView, mode: Mode = Mode.AUTO, wants: Demand | None = None, least: int = 0, **changes: Any
) -> tuple[str, str, str] | None:
    """(prefill, decode, mode) of the choice; "" for none."""
    found = choose(workers, wants or demand(), rules(mode, min_prefill_tokens=least), **changes)
    return None if found is None else named(found)


def named(choice: Choice) -> tuple[str, str, str]:
    prefill, decode = (view.worker_id if view else "" for view in (choice.prefill, choice.decode))
    return prefill, decode, choice.mode.value if choice.mode else ""


def refusal(*workers: WorkerView, **changes: Any) -> int:
    with pytest.raises(ApiError) as caught:
        chosen(*workers, **changes)
    assert caught.value.status == 404 or caught.value.headers["Retry-After"]
    return caught.value.status


def test_a_push_pair() -> None:
    assert chosen(P, D) == ("p", "d", "push")
    assert chosen(P, D, mode=Mode.PUSH) == ("p", "d", "push")


def test_a_pull_pair_is_half_chosen() -> None:
    assert chosen(P, D, mode=Mode.PULL) == ("p", "", "pull")
    p, d = view("p", PREFILL, [PULL]), view("d", DECODE, [PULL])
    for pair in ((p, d), (p, D), (P, d)):
        assert chosen(*pair) == chosen(*pair, mode=Mode.PULL) == ("p", "", "pull")


def test_each_role_has_its_own_policy() -> None:
    prefills = [view("p0", PREFILL, num_tokens=9), view("p1", PREFILL, num_tokens=8)]
    decodes = [view("d0", final_blocks=3), view("d1", final_blocks=2)]
    assert chosen(*prefills, *decodes) == ("p1", "d1", "push")


def test_auto_pushes_while_a_decode_worker_has_room_then_pulls_over_the_same_pair() -> None:
    full = view("d", **FULL)
    assert chosen(P, full, view("d1", final_blocks=90)) == ("p", "d1", "push")
    assert chosen(P, full) == chosen(P, full, view("d1", **FULL)) == ("p", "", "pull")
    assert chosen(P, full, view("d1", DECODE, [PULL]), num_late=8) == ("p", "", "pull")  # room, but not for a push
    assert choose_decode([full], demand(), P, rules()) is None  # it waits there
    assert choose_decode([D], demand(), P, rules()) is D


@pytest.mark.parametrize("mode", [Mode.PULL, Mode.AUTO])
def test_a_mixed_worker_with_room_serves_now_what_a_full_decode_worker_would_serve_later(mode: Mode) -> None:
    mixed = view("m", MIXED)
    assert chosen(P, view("d", **FULL), mixed, mode=mode) == ("", "m", "")
    assert chosen(P, view("d", **FULL), view("m", MIXED, **FULL), mode=mode) == ("p", "", "pull")
    assert chosen(P, D, mixed, mode=mode)[0] == "p"


def test_a_forced_push_waits_when_all_decode_workers_are_full() -> None:
    assert chosen(P, view("d", **FULL), mode=Mode.PUSH) is None
    assert chosen(P, view("d", **FULL), view("d1", DECODE, [PULL]), mode=Mode.PUSH) is None


def test_in_no_mode_a_full_prefill_worker_is_chosen() -> None:
    for mode in Mode:
        assert chosen(view("p", PREFILL, **FULL), D, mode=mode) is None


@pytest.mark.parametrize("mode", [Mode.PULL, Mode.AUTO])
def test_no_more_than_four_prompts_a_decode_worker_are_prefilled_ahead(mode: Mode) -> None:
    full = view("d", **FULL)
    assert chosen(P, full, mode=mode, num_late=3) == ("p", "", "pull")
    assert chosen(P, full, mode=mode, num_late=4) is None
    assert chosen(P, full, view("d1", **FULL), mode=mode, num_late=7) == ("p", "", "pull")
    assert chosen(P, D, mode=Mode.PULL, num_late=4) == ("p", "", "pull")


@pytest.mark.parametrize(("mode", "other"), [(Mode.PUSH, PULL), (Mode.PULL, PUSH)])
def test_a_forced_mode_uses_no_pair_of_the_other(mode: Mode, other: TransferMode) -> None:
    only = (view("p", PREFILL, [other]), view("d", DECODE, [other]))
    for pair in (only, (only[0], D), (P, only[1])):
        assert chosen(*pair, mode=mode) == ("", "d", "")


@pytest.mark.parametrize(
    ("prefill", "change"),
    [
        (P, {"fingerprint": "g"}),
        (P, {"models": ("other",)}),
        (P, {"modes": ()}),
        (view("p", PREFILL, [PULL]), {"modes": [PUSH]}),
        (view("p", PREFILL, [PUSH]), {"modes": [PULL]}),
    ],
    ids=["weights", "name", "no peer", "it pushes", "it pulls"],
)
def test_workers_that_do_not_fit_are_not_paired(prefill: WorkerView, change: dict[str, Any]) -> None:
    odd, good = view("odd", DECODE, **change), view("d", num_tokens=10**6, final_blocks=90)
    pushes = PUSH in prefill.facts.transfer_modes
    assert chosen(prefill, odd, good) == (("p", "d", "push") if pushes else ("p", "", "pull"))
    assert chosen(prefill, odd) == ("", "odd", "")  # no pair fits: the decode worker prefills by itself


def test_fingerprints_count_only_where_both_are_told() -> None:
    assert chosen(view("p", PREFILL, fingerprint=""), D) == ("p", "d", "push")


def test_a_decode_worker_whose_partners_are_full_is_left_for_another() -> None:
    pairs = [view("p0", PREFILL, fingerprint="0", **FULL), view("d0", fingerprint="0")]
    pairs += [view("p1", PREFILL, fingerprint="1"), view("d1", fingerprint="1", final_blocks=50)]
    assert chosen(*pairs) == ("p1", "d1", "push")


def test_one_token_needs_no_decode_worker() -> None:
    assert chosen(P, D, wants=demand(num_new=1)) == ("p", "", "")
    assert chosen(P, wants=demand(num_new=1)) == ("p", "", "")
    assert chosen(D, wants=demand(num_new=1)) == ("", "d", "")


def test_what_cannot_be_split_goes_whole_to_a_mixed_or_a_decode_worker() -> None:
    assert chosen(P, D, M, wants=demand(splittable=False)) == ("", "m", "")
    assert chosen(P, D, wants=demand(splittable=False)) == ("", "d", "")


def test_mixed_workers_serve_whole_requests_and_take_what_pairs_cannot() -> None:
    assert chosen(M) == ("", "m", "")
    assert chosen(P, D, M) == ("p", "d", "push")
    assert chosen(P, view("d", **FULL), M, mode=Mode.PUSH) == ("", "m", "")
    assert chosen(P, view("d", **FULL), M, num_late=4) == ("", "m", "")
    assert chosen(D, M) == ("", "m", "")
    assert chosen(P, M) == ("", "m", "")


def test_without_a_prefill_worker_that_is_well_the_decode_worker_prefills() -> None:
    found = choose([view("p", PREFILL, takes=False), D], demand(), rules())
    assert found is not None and named(found) == ("", "d", "") and found.reason == "no prefill worker"


def test_without_a_decode_worker_it_is_503_unless_a_mixed_one_is_there() -> None:
    assert refusal(P) == 503
    assert refusal(P, view("d", takes=False)) == 503
    assert refusal(view("m", MIXED, (), takes=False)) == 503
    assert chosen(P, view("d", takes=False), M) == ("", "m", "")


def test_models_by_name() -> None:
    assert refusal(P, D, wants=demand(model="x")) == 404
    assert refusal(P, D, wants=demand(model="x"), all_known=False) == 503
    assert refusal(wants=demand(model="x")) == 503
    assert refusal(P, view("d", takes=False), wants=demand(model="m")) == 503
    other = (view("p2", PREFILL, models=("x", "y")), view("d2", models=("y", "x")))
    assert chosen(P, D, *other, wants=demand(model="x")) == ("p2", "d2", "push")
    assert chosen(view("m", MIXED, (), models=()), wants=demand(model="any")) == ("", "m", "")


def test_workers_to_avoid_are_taken_only_when_no_other_is_well() -> None:
    others = (view("p2", PREFILL, num_tokens=99), view("d2", final_blocks=50))
    assert chosen(P, D, *others, avoid=frozenset("pd")) == ("p2", "d2", "push")
    assert chosen(P, D, avoid=frozenset("pd")) == ("p", "d", "push")
    full = (view("p2", PREFILL, **FULL), view("d2"))
    assert chosen(P, D, *full, avoid=frozenset("p")) is None  # better to wait for the other one


def test_short_and_mostly_cached_prompts_are_prefilled_where_they_are_decoded() -> None:
    assert chosen(P, D, wants=demand(99), least=100) == ("", "d", "")
    assert chosen(P, D, wants=demand(100), least=100) == ("p", "d", "push")
    knowing = view("d2", num_matched_tokens=901, final_blocks=50)
    assert chosen(P, D, knowing, wants=demand(1000), least=100) == ("", "d2", "")
    full = view("d2", num_matched_tokens=901, **FULL)
    assert chosen(P, D, full, wants=demand(1000), least=100) == ("p", "d", "push")


def test_a_session_goes_before_the_policy() -> None:
    decodes = [view(f"d{number}", final_blocks=number) for number in range(4)]
    wants = [demand(session=str(number)) for number in range(40)]
    first = [chosen(P, *decodes, wants=want) for want in wants]
    assert len({found[1] for found in first if found}) == 4
    assert [chosen(P, *reversed(decodes), wants=want, turn=5) for want in wants] == first


def test_a_stalled_worker_gets_nothing_until_it_speaks() -> None:
    stalled = view("d", stalled=True)
    assert chosen(P, stalled, mode=Mode.PUSH) is None
    assert chosen(P, stalled) == ("p", "", "pull")  # in the hope that it speaks until the prompt is there
    assert choose_decode([stalled], demand(), P, rules()) is None
    assert chosen(view("p", PREFILL, stalled=True), D) is None
    assert chosen(P, stalled, view("d2", final_blocks=90)) == ("p", "d2", "push")


@pytest.mark.parametrize(
    ("worker", "num_prompt", "room"),
    [
        (view("w", num_requests=5), 1, True),
        (view("w", num_requests=6), 1, False),  # 4 run, 2 wait
        (view("w", num_requests=1, prompt_blocks=98), 31, True),  # 32 positions: 2 blocks, exactly the rest
        (view("w", num_requests=1, prompt_blocks=98), 32, False),
        (view("w"), 10**6, True),  # it is the worker's to refuse
        (view("w", num_requests=999, max_num_seqs=0, num_blocks=0), 10**6, True),  # nothing is known of it
        (view("w", stalled=True), 1, False),
    ],
)
def test_room(worker: WorkerView, num_prompt: int, room: bool) -> None:
    assert has_room(worker, demand(num_prompt)) is room


def test_matched_bytes_as_tokens() -> None:
    ids = demand(100, prefix=b"x" * 600)  # token ids: 6 bytes each, and this is all of the prompt
    assert matched_tokens(ids, 300) == 50
    assert matched_tokens(demand(10_000, prefix=b"x" * 6400), 6400) == 1600  # cut off: 4 bytes a token
    assert matched_tokens(ids, 0) == 0


def test_the_late_choice_of_a_decode_worker() -> None:
    odd, pushed, full = view("d0", fingerprint="g"), view("d1", DECODE, [PUSH]), view("d2", **FULL)
    for good in (view("d3"), view("d3", DECODE, [PULL])):
        assert choose_decode([odd, pushed, full, good], demand(), P, rules()) is good
    assert choose_decode([odd, pushed, full], demand(), P, rules()) is None
    with pytest.raises(ApiError) as caught:
        choose_decode([odd, pushed], demand(), P, rules())
    assert caught.value.status == 503
