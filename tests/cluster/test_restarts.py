"""The number of restarts in any window is bounded; old ones are forgotten."""

from __future__ import annotations

from baton.cluster.restarts import RestartBudget


def test_no_more_than_the_limit_in_a_window() -> None:
    budget = RestartBudget(2, window_s=10.0)
    assert [budget.take(now) for now in (0.0, 4.0, 9.9)] == [True, True, False]
    assert budget.take(10.0)  # the first is 10 s old
    assert not budget.take(13.9)  # 4.0 and 10.0 are within 10 s
    assert budget.take(14.0)


def test_none_at_all() -> None:
    assert not RestartBudget(0).take(0.0)
