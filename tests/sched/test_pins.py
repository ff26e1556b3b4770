"""A pin is one more owner, from the word to the transfer until the transfer lets go."""

import pytest

from baton.cache.pool import BlockPool
from baton.sched.pins import Pins


def make() -> tuple[BlockPool, Pins]:
    pool = BlockPool(4)
    pool.allocate(3)
    return pool, Pins(pool)


def test_pinned_blocks_outlive_their_sequence() -> None:
    pool, pins = make()
    pin = pins.pin([0, 1])
    pool.release([0, 1, 2])
    assert (pool.num_free, pins.num_blocks) == (2, 2)
    pins.settle(pin)
    assert (pool.num_free, pins.num_blocks) == (4, 0)


def test_pins_of_the_same_blocks_count_on_their_own() -> None:
    pool, pins = make()
    first, second = pins.pin([0]), pins.pin([0, 1])
    assert first != second and sorted(pins.blocks()) == [0, 0, 1] and pins.num_blocks == 2
    pins.settle(first)
    assert pool.refs(0) == 2


def test_a_settled_pin_obeys_the_fence() -> None:
    pool, pins = make()
    pin = pins.pin([0])
    pool.touch([0], 5)
    pool.release([0])
    pins.settle(pin)
    assert (pool.num_quarantined, pool.num_free) == (1, 1)


def test_only_what_a_withdrawn_pin_alone_holds_comes_free_soon() -> None:
    pool, pins = make()
    pin = pins.pin([0, 1])
    pool.release([0])
    assert pins.num_soon_free == 0
    pins.withdraw(pin)
    assert pins.num_soon_free == 1  # block 1 is still a sequence's
    other = pins.pin([1])
    pool.release([1])
    assert pins.num_soon_free == 1  # and then another transfer's
    pins.withdraw(other)
    assert pins.num_soon_free == 2
    pins.settle(pin)
    assert pins.num_soon_free == 1


def test_settling_is_exactly_once() -> None:
    _, pins = make()
    with pytest.raises(AssertionError, match="pin 7"):
        pins.settle(7)
    pin = pins.pin([])
    pins.settle(pin)
    with pytest.raises(AssertionError, match="settled twice"):
        pins.settle(pin)
