"""Sliding windows: what is old is forgotten, percentiles are by nearest rank."""

from __future__ import annotations

from baton.obs.window import Rate, Recent


def test_rate_is_the_mean_over_the_window() -> None:
    rate = Rate(10, start_s=1000.0)
    for second in range(20):
        rate.add(5, 1000.0 + second)
        rate.add(5, 1000.5 + second)
    assert rate.per_second(1020.0) == 9.0  # of the 10 slices, that of second 1010 is just too old
    assert rate.per_second(1025.0) == 4.0
    assert rate.per_second(1040.0) == 0.0


def test_rate_before_the_window_is_full_is_over_the_time_that_was() -> None:
    rate = Rate(10, start_s=0.0)
    rate.add(8, 0.1)
    assert rate.per_second(0.2) == 8.0  # never over less than a second
    assert rate.per_second(4.0) == 2.0


def test_rate_takes_moments_that_step_back() -> None:
    rate = Rate(10, start_s=0.0)
    rate.add(1, 5.0)
    rate.add(1, 4.9)
    assert rate.per_second(5.0) == 2 / 5.0


def test_percentiles_are_by_nearest_rank() -> None:
    recent = Recent(100.0)
    for value in range(100, 0, -1):
        recent.add(value, 0.0)
    assert recent.percentiles((50, 90, 99, 100), 1.0) == [50, 90, 99, 100]
    alone = Recent(100.0)
    alone.add(7.0, 0.0)
    assert alone.percentiles((1, 50, 99), 1.0) == [7.0, 7.0, 7.0]


def test_old_values_and_too_many_are_forgotten() -> None:
    recent = Recent(10.0, size=3)
    assert recent.percentiles((50,), 0.0) is None
    for moment, value in ((0.0, 1.0), (5.0, 2.0), (6.0, 3.0), (7.0, 4.0)):
        recent.add(value, moment)
    assert recent.percentiles((1, 100), 8.0) == [2.0, 4.0]
    assert recent.percentiles((1, 100), 16.5) == [4.0, 4.0]
    assert recent.percentiles((50,), 30.0) is None
