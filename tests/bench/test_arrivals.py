"""Arrivals follow the process that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from baton.bench.arrivals import Arrivals, Ramp, Recorded, Steady
from baton.bench.kinds import RampShape
from baton.core.errors import ConfigError


def gaps(arrivals: Steady | Ramp, count: int, seed: int = 0) -> np.ndarray:
    times = arrivals.times(count, np.random.default_rng(seed))
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness: float) -> None:
    """Kolmogorov-Smirnov against Gamma(shape = burstiness, mean = 1 / rate): not refused at 1 %."""
    found = gaps(Steady(rate=50.0, burstiness=burstiness), 5000)
    assert stats.kstest(found, stats.gamma(burstiness, scale=1 / (50.0 * burstiness)).cdf).pvalue > 0.01


def test_the_statistical_test_can_fail() -> None:
    found = gaps(Steady(rate=50.0, burstiness=1.5), 5000)
    assert stats.kstest(found, stats.expon(scale=1 / 50.0).cdf).pvalue < 1e-6


def test_gaps_are_independent() -> None:
    """Of a Poisson process: no correlation of neighbours beyond chance (3 standard errors)."""
    found = gaps(Steady(rate=20.0), 5000)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 3 / math.sqrt(5000)


def test_the_last_request_comes_at_count_over_rate() -> None:
    for seed in range(5):
        assert Steady(rate=8.0).times(40, np.random.default_rng(seed))[-1] == pytest.approx(5.0)


def test_infinities() -> None:
    assert not Steady(rate=math.inf).times(3, np.random.default_rng(0)).any()
    assert gaps(Steady(rate=4.0, burstiness=math.inf), 8) == pytest.approx([0.25] * 8)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    assert list(Ramp(start=1, end=5).rates(5)) == [1, 2, 3, 4, 5]
    assert list(Ramp(start=1, end=16, shape=RampShape.EXPONENTIAL).rates(5)) == pytest.approx([1, 2, 4, 8, 16])
    even = gaps(Ramp(start=1, end=4, burstiness=math.inf), 4)
    assert even == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    drawn = gaps(Ramp(start=10, end=1000), 4000)
    assert drawn[:400].mean() / drawn[-400:].mean() > 10


def test_a_trace_begins_at_once_and_can_be_played_faster() -> None:
    recorded = Recorded(at_s=(10.0, 10.5, 12.0), speed=2.0)
    assert list(recorded.times(3, np.random.default_rng(0))) == [0, 0.25, 1.0]


def test_the_same_seed_gives_the_same_times() -> None:
    assert list(gaps(Steady(rate=3), 20, seed=7)) == list(gaps(Steady(rate=3), 20, seed=7))
    assert list(gaps(Steady(rate=3), 20, seed=7)) != list(gaps(Steady(rate=3), 20, seed=8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steady(rate=0),
        lambda: Steady(rate=math.nan),
        lambda: Steady(rate=1, burstiness=0),
        lambda: Ramp(start=0, end=1),
        lambda: Ramp(start=1, end=math.inf),
        lambda: Recorded(at_s=(1.0,), speed=0),
    ],
)
def test_what_cannot_be_is_refused(make: Arrivals) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
