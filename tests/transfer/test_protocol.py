"""The protocol, checked in every schedule that differs from the unhurried one in a few choices.

A choice is another action before the one whose turn it is (which then waits until nothing else is left), or a fault.
`World` checks its promises after every step. More than 50,000 schedules, together with test_protocol_random.
"""

from __future__ import annotations

import dataclasses

import pytest

from baton.core.handoff import TransferMode
from tests.transfer.explore import cached_geometry, explore
from tests.transfer.hosts import Setup
from tests.transfer.world import FAULTS, World

SCHEDULERS = ("preempt", "abort", "forgo")
NETWORK = ("part", "fail", "twice", "again", "drop")
LOSSES = ("cut", "kill", "leave")

CASES: dict[str, tuple[Setup, int, int, int]] = {
    # what: setup, changes, schedules that there are at least in push, in pull
    "order": (Setup(), 4, 1100, 400),
    "order, taker first": (Setup(taker_first=True), 4, 1500, 450),
    "two transfers": (Setup(transfers=2), 2, 900, 650),
    "schedulers": (Setup(faults=SCHEDULERS, max_faults=1), 3, 1500, 900),
    "schedulers, taker first": (Setup(taker_first=True, faults=SCHEDULERS), 2, 450, 300),
    "network": (Setup(taker_first=True, faults=NETWORK), 2, 900, 550),
    "small blocks at the giver": (Setup(taker_tokens=4, num_tokens=5, faults=SCHEDULERS + NETWORK), 2, 1100, 850),
    "large blocks at the giver": (Setup(giver_tokens=4, num_tokens=5, faults=FAULTS, max_faults=1), 2, 1400, 1100),
    "schedulers hear late": (Setup(taker_first=True, lag=True, faults=FAULTS, max_faults=1), 2, 1700, 1300),
    "time": (Setup(faults=("pass",)), 3, 8500, 7000),
    "losses": (Setup(taker_first=True, faults=("cut", "kill"), max_faults=1), 3, 5000, 2500),
    "losses for good": (Setup(taker_first=True, heals=False, faults=("reset", *LOSSES), max_faults=1), 2, 500, 300),
    "losses and time": (Setup(faults=("cut", "kill", "pass")), 2, 1400, 1300),
    "resets": (Setup(taker_first=True, faults=("reset", "again")), 2, 900, 500),
    "two attempts": (Setup(transfers=2, attempts=True, faults=("forgo", "pass", "reset"), max_faults=1), 2, 2000, 1600),
    "two ranks": (Setup(ranks=2, faults=(*SCHEDULERS, *LOSSES), max_faults=1), 2, 2000, 1500),
    "a block is cached": (Setup(taker_first=True, num_cached=2, faults=FAULTS, max_faults=1), 2, 1700, 1400),
    "all is cached": (Setup(num_cached=3, faults=FAULTS, max_faults=1), 2, 900, 850),
    "one of each mode": (Setup(transfers=2, mixed=True, faults=FAULTS), 1, 190, 190),
    "two transfers, any fault": (Setup(transfers=2, faults=FAULTS), 1, 200, 190),
}


@pytest.mark.parametrize("mode", TransferMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES)
def test_every_schedule_keeps_the_promises(case: str, mode: TransferMode) -> None:
    setup, changes, *least = CASES[case]
    with cached_geometry():
        number = sum(1 for _ in explore(World, dataclasses.replace(setup, mode=mode), changes))
    print(f"{number} schedules")
    assert number >= least[mode is TransferMode.PULL]


def test_there_are_enough() -> None:
    assert sum(push + pull for _, _, push, pull in CASES.values()) >= 50_000
