from __future__ import annotations

from collections import Counter

import pytest

from baton.router.policies import (
    POLICIES,
    free_blocks,
    least_tokens,
    of_session,
    power_of_two,
    prefix_affinity,
    round_robin,
)
from baton.router.worker import WorkerGauges
from tests.router.views import demand, view

IDS = ("a", "b", "c")


@pytest.mark.parametrize("name", POLICIES)
def test_each_takes_the_only_candidate(name: str) -> None:
    only = view("a")
    assert all(POLICIES[name]([only], demand(), turn) is only for turn in range(5))


@pytest.mark.parametrize("name", POLICIES)
def test_equal_workers_get_about_the_same(name: str) -> None:
    workers = [view(name) for name in IDS]
    counts = Counter(POLICIES[name](workers, demand(), turn).worker_id for turn in range(300))
    assert all(80 <= counts[worker_id] <= 120 for worker_id in IDS), counts  # a third each, within a fifth


def test_round_robin_goes_round() -> None:
    workers = [view(name) for name in IDS]
    assert [round_robin(workers, demand(), turn).worker_id for turn in range(1, 6)] == ["b", "c", "a", "b", "c"]


def test_power_of_two_takes_the_less_loaded_of_two_and_draws_all_pairs() -> None:
    workers = [view("a", num_requests=1), view("b", num_requests=2), view("c", num_requests=3)]
    counts = Counter(power_of_two(workers, demand(), turn).worker_id for turn in range(3000))
    assert counts["c"] == 0  # the most loaded one loses every draw of two different ones
    assert 1900 < counts["a"] < 2100  # drawn in 2 of 3 pairs
    assert power_of_two(workers, demand(), 7) is power_of_two(workers, demand(), 7)


def test_least_tokens() -> None:
    workers = [view("a", num_tokens=10), view("b", num_tokens=9), view("c", num_tokens=11)]
    assert {least_tokens(workers, demand(), turn).worker_id for turn in range(6)} == {"b"}


def test_prefix_affinity_prefers_the_longest_match_then_the_least_loaded() -> None:
    workers = [view("a", num_tokens=0), view("b", num_tokens=500, num_matched_tokens=64), view("c", num_tokens=1)]
    assert prefix_affinity(workers, demand(), 0).worker_id == "b"
    assert prefix_affinity([workers[2], workers[0]], demand(), 0).worker_id == "a"


def test_prefix_affinity_passes_over_the_overloaded() -> None:
    least, matching = view("a", num_tokens=100), view("b", num_tokens=100 + 8192, num_matched_tokens=4096)
    assert prefix_affinity([least, matching], demand(), 0).worker_id == "b"
    over = view("b", num_tokens=100 + 8193, num_matched_tokens=4096)
    assert prefix_affinity([least, over], demand(), 0).worker_id == "a"


def test_free_blocks_counts_what_is_used_or_what_will_be_needed_whichever_is_more() -> None:
    used = view("a", gauges=WorkerGauges(used_blocks=60), final_blocks=10)  # 40 left
    needed = view("b", gauges=WorkerGauges(used_blocks=10), final_blocks=50)  # 50 left
    assert free_blocks([used, needed], demand(), 0).worker_id == "b"
    large = view("c", num_blocks=1000, gauges=WorkerGauges(used_blocks=900))  # 100 left
    assert free_blocks([used, needed, large], demand(), 0).worker_id == "c"


def test_free_blocks_then_looks_at_what_is_on_its_way() -> None:
    workers = [view("a", final_blocks=5, inbound_tokens=80), view("b", final_blocks=5)]
    assert {free_blocks(workers, demand(), turn).worker_id for turn in range(4)} == {"b"}


def test_a_session_stays_where_it_is_and_few_move_when_a_worker_goes() -> None:
    workers = [view(name) for name in (*IDS, "d")]
    before = {str(number): of_session(workers, str(number)).worker_id for number in range(400)}
    assert all(75 <= count <= 125 for count in Counter(before.values()).values())
    assert {session: of_session(list(reversed(workers)), session).worker_id for session in before} == before
    after = {session: of_session(workers[:3], session).worker_id for session in before}
    assert all(after[session] == chosen for session, chosen in before.items() if chosen != "d")
