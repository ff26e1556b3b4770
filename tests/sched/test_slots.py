"""Slots come lowest first and are never given twice."""

import pytest

from baton.sched.slots import Slots


def test_lowest_first() -> None:
    slots = Slots(3)
    assert [slots.take(), slots.take(), slots.take()] == [0, 1, 2]
    slots.give_back(2)
    slots.give_back(0)
    assert (slots.num_free, slots.taken()) == (2, {1})
    assert slots.take() == 0


def test_misuse_is_our_bug() -> None:
    slots = Slots(1)
    with pytest.raises(AssertionError, match="not taken"):
        slots.give_back(0)
    slots.take()
    with pytest.raises(AssertionError, match="no free slot"):
        slots.take()
