"""Confidence intervals by resampling, for data with two sources of chance: repetitions, and requests in each. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from baton.bench.collection import Values

_DRAWS = 1000
_LEVEL = 0.95
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Statistic = Callable[[Matrix], Values]
"""Of each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, and the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def median(rows: Matrix) -> Values:
    """Of each row."""
    return np.asarray(np.median(rows, axis=1))


def p99(rows: Matrix) -> Values:
    """Of each row."""
    return np.asarray(np.percentile(rows, 99, axis=1))


def mean(rows: Matrix) -> Values:
    """Of each row."""
    return np.asarray(rows.mean(axis=1))


def estimate(repetitions: Sequence[Values], statistic: Statistic, seed: int = 0) -> Estimate:
    """A statistic over all repetitions together, percentile interval of a two-level bootstrap.

    Each draw takes repetitions with replacement, and in each of those requests with replacement (Davison and Hinkley,
    Bootstrap Methods and their Application, 1997, section 3.8). With one repetition it knows nothing of what differs
    between repetitions: the interval is then too narrow.
    """
    rng = np.random.default_rng(seed)
    drawn = statistic(_resample(repetitions, _choices(rng, len(repetitions)), rng))
    return _interval(_whole(repetitions, statistic), drawn)


def ratio(first: Sequence[Values], second: Sequence[Values], statistic: Statistic, seed: int = 0) -> Estimate:
    """statistic(first) / statistic(second), as `estimate`.

    With as many repetitions on both sides these are pairs (one after the other in time), and with as many requests in
    them so are the requests (same prompts, same order): a draw takes the same ones on both sides. NaN where the
    second side is 0.
    """
    rng = np.random.default_rng(seed)
    chosen = _choices(rng, len(first))
    other = chosen if len(first) == len(second) else _choices(rng, len(second))
    same = [len(values) for values in first] == [len(values) for values in second]
    above = statistic(_resample(first, chosen, np.random.default_rng([seed, 1])))
    below = statistic(_resample(second, other, np.random.default_rng([seed, 1 if same else 2])))
    divisor = _whole(second, statistic)
    if not divisor or not below.all():
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    return _interval(_whole(first, statistic) / divisor, above / below)


def _choices(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return rng.integers(count, size=(_DRAWS, count))


def _resample(
    repetitions: Sequence[Values], chosen: np.ndarray[tuple[int, int], np.dtype[np.int64]], rng: np.random.Generator
) -> Matrix:
    """One row a draw. Every repetition weighs the same, whatever its number of requests."""
    sizes = np.asarray([len(values) for values in repetitions])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    flat = np.concatenate(repetitions)
    columns = []
    for which in chosen.T:
        share = rng.random((len(chosen), int(sizes.max())))
        columns.append(flat[starts[which][:, None] + (share * sizes[which][:, None]).astype(int)])
    return np.concatenate(columns, axis=1)


def _whole(repetitions: Sequence[Values], statistic: Statistic) -> float:
    return float(statistic(np.concatenate(repetitions)[None, :])[0])


def _interval(value: float, drawn: Values) -> Estimate:
    low, high = np.percentile(drawn, [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)])
    return Estimate(value=value, low=float(low), high=float(high))
