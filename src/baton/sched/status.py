"""Where a sequence stands, and which moves are legal."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """State of one sequence.

    RESERVED: it holds a slot and the blocks of its prompt, and another engine fills them; nothing of it is planned.
    LANDED: they are filled and its first token is known; the runner's tables do not hold it yet.
    """

    WAITING = "waiting"
    RESERVED = "reserved"
    LANDED = "landed"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


LEGAL: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RESERVED, Status.RUNNING, Status.FINISHED}),
    Status.RESERVED: frozenset({Status.WAITING, Status.LANDED, Status.FINISHED}),
    Status.LANDED: frozenset({Status.RUNNING, Status.PREEMPTED, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


def advance(current: Status, new: Status) -> Status:
    """Return `new`; asserts that the move is legal."""
    assert new in LEGAL[current], f"a sequence cannot go from {current.value} to {new.value}"
    return new
