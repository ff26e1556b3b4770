"""The protocol in long random schedules with many faults; a failure names its seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from baton.core.handoff import TransferMode
from tests.transfer.explore import cached_geometry, run_random
from tests.transfer.hosts import Setup
from tests.transfer.world import FAULTS, World

FAST, BULK = range(400), range(400, 1_400)

CASES: dict[str, dict[str, Any]] = {
    "one": {},
    "one, late schedulers": {"lag": True},
    "two": {"transfers": 2},
    "four, every second one in the other mode": {"transfers": 4, "mixed": True},
    "three, nothing heals": {"transfers": 3, "heals": False},
    "three attempts": {"transfers": 3, "attempts": True, "lag": True},
    "two ranks": {"ranks": 2},
    "small blocks at the giver, some cached": {"taker_tokens": 4, "num_tokens": 7, "num_cached": 4},
    "large blocks at the giver": {"giver_tokens": 4, "num_tokens": 5},
}


def _run(case: str, mode: TransferMode, seeds: range) -> Counter[str | None]:
    setup = Setup(mode=mode, faults=FAULTS, max_faults=5, **CASES[case])
    with cached_geometry():
        worlds = [run_random(World, setup, seed) for seed in seeds]
    return Counter(decode.outcome for world in worlds for decode in world.decodes)


@pytest.mark.parametrize("mode", TransferMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_random_schedules_keep_the_promises(case: str, mode: TransferMode) -> None:
    outcomes = _run(case, mode, FAST)
    print(f"{len(FAST)} schedules, {dict(outcomes)}")
    # The seeds do reach what they are meant to test.
    assert all(outcomes[outcome] > len(FAST) / 20 for outcome in ("landed", "failed", "forgone"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", TransferMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_a_thousand_random_schedules_more(case: str, mode: TransferMode) -> None:
    _run(case, mode, BULK)
