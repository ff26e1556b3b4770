"""The table of legal moves."""

from itertools import product

import pytest

from baton.sched.status import Status, advance

LEGAL = {
    (Status.WAITING, Status.RUNNING),
    (Status.WAITING, Status.FINISHED),
    (Status.WAITING, Status.RESERVED),
    (Status.RESERVED, Status.WAITING),
    (Status.RESERVED, Status.LANDED),
    (Status.RESERVED, Status.FINISHED),
    (Status.LANDED, Status.RUNNING),
    (Status.LANDED, Status.PREEMPTED),
    (Status.LANDED, Status.FINISHED),
    (Status.RUNNING, Status.PREEMPTED),
    (Status.RUNNING, Status.FINISHED),
    (Status.PREEMPTED, Status.RUNNING),
    (Status.PREEMPTED, Status.FINISHED),
}


@pytest.mark.parametrize(("current", "new"), list(product(Status, Status)))
def test_only_legal_moves_pass(current: Status, new: Status) -> None:
    if (current, new) in LEGAL:
        assert advance(current, new) is new
    else:
        with pytest.raises(AssertionError, match=f"from {current.value} to {new.value}"):
            advance(current, new)
