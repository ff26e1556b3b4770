"""Sums and percentiles of a window, against plain lists."""

from __future__ import annotations

import math
import random

import pytest

from baton.router.sliding import SlidingCounts, bucket, percentiles, seconds_of


def test_what_is_older_than_the_window_is_forgotten() -> None:
    counts = SlidingCounts((60, 300))
    counts.add([("a", 3)], 1000.0)
    counts.add([("a", 4)], 1030.0)
    assert counts.totals(60, 1050.0)["a"] == 7
    assert counts.totals(60, 1062.0)["a"] == 4
    assert counts.totals(300, 1062.0)["a"] == 7
    assert dict(counts.totals(60, 1200.0)) == {} and counts.totals(300, 1200.0)["a"] == 7
    assert dict(counts.totals(300, 9999.0)) == {}


def test_totals_are_exact_to_two_seconds() -> None:
    dice, counts, added = random.Random(3), SlidingCounts((60, 300)), []
    now = 5000.0
    for _ in range(3000):
        now += dice.expovariate(10)
        amount = dice.randrange(1, 10)
        counts.add([("n", amount)], now)
        added.append((now, amount))
        total = counts.totals(60, now)["n"]
        assert sum(each for at, each in added if at > now - 58) <= total
        assert total <= sum(each for at, each in added if at > now - 60 - 1e-6)


def test_a_clock_that_steps_back_loses_nothing() -> None:
    counts = SlidingCounts((60, 300))
    counts.add([("a", 1)], 1000.0)
    counts.add([("a", 1)], 990.0)
    assert counts.totals(60, 1001.0)["a"] == 2


def test_a_bucket_is_at_most_two_percent_off() -> None:
    for power in range(-50, 30):
        value = 10 ** (power / 10)
        assert seconds_of(bucket(value)) == pytest.approx(value, rel=0.02)


def test_percentiles_are_those_of_the_sorted_values() -> None:
    dice = random.Random(5)
    values = [dice.lognormvariate(-3, 1) for _ in range(999)]
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket(value)] = counts.get(bucket(value), 0) + 1
    ordered = sorted(values)
    expected = [ordered[math.ceil(rank / 100 * len(ordered)) - 1] for rank in (50, 90, 99)]  # nearest rank
    assert percentiles(counts.items(), (50, 90, 99)) == pytest.approx(expected, rel=0.02)
    assert percentiles([], (50,)) is None
