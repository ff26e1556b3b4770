"""Where a sequence stands, and which moves are legal."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """State of one sequence. States of a hand-off (reserved, landed, ...) extend this table."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


LEGAL: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


def advance(current: Status, new: Status) -> Status:
    """Return `new`; asserts that the move is legal."""
    assert new in LEGAL[current], f"a sequence cannot go from {current.value} to {new.value}"
    return new
