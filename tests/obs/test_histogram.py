"""Histogram: bounds belong to their bucket, as Prometheus's `le` says."""

from __future__ import annotations

import pytest

from baton.obs import buckets
from baton.obs.histogram import Histogram

INFINITE = float("inf")


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 6):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [(1, 2), (2, 3), (5, 4), (INFINITE, 5)]
    assert (histogram.count, histogram.total) == (5, 14.0)


def test_observations_can_be_counted_together() -> None:
    together, apart = Histogram((1, 2)), Histogram((1, 2))
    together.observe(1.5, 3)
    for _ in range(3):
        apart.observe(1.5)
    assert list(together.cumulative()) == list(apart.cumulative()) == [(1, 0), (2, 3), (INFINITE, 3)]
    assert together.total == apart.total == 4.5


@pytest.mark.parametrize(
    ("max_model_len", "bounds"),
    [(1, (1,)), (2, (1, 2)), (99, (1, 2, 5, 10, 20, 50)), (2048, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000))],
)
def test_token_bounds_are_1_2_5_up_to_the_longest_sequence(max_model_len: int, bounds: tuple[int, ...]) -> None:
    assert buckets.token_counts(max_model_len) == bounds
