"""Two sets of results side by side: ratios, case by case. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from baton.bench.bootstrap import Estimate, Statistic, mean, median, p99, ratio
from baton.bench.case import Case
from baton.bench.collection import Run, Values, by_mode
from baton.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one case.

    Attributes:
        mode: "" when the sides differ in it.
        first, second: of each side: ms, tokens/s or requests/s.
        ratio: first / second; bounds are NaN for a rate of one run a side, of which nothing says how it varies.
        higher_is_better: of the figure.
        repetitions: of each side.
    """

    mode: str
    case: Case
    figure: str
    first: float
    second: float
    ratio: Estimate
    higher_is_better: bool
    repetitions: tuple[int, int]

    @property
    def verdict(self) -> str:
        """What the interval says of the first side: "better", "worse" or "same" (it contains 1); "?" without one."""
        if math.isnan(self.ratio.low):
            return "?"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "same"
        return "better" if (self.ratio.value > 1) is self.higher_is_better else "worse"


_SAMPLED: tuple[tuple[str, str, Statistic], ...] = (
    ("median TTFT ms", "ttft", median),
    ("P99 TTFT ms", "ttft", p99),
    ("median TPOT ms", "tpot", median),
    ("P99 TPOT ms", "tpot", p99),
    ("median E2EL ms", "e2el", median),
)
_RATES = (("output tokens/s", "output_throughput"), ("requests/s", "request_throughput"))


def compare(first: Sequence[Run], second: Sequence[Run]) -> list[Row]:
    """Every figure of every case that both sides have.

    Sides that each have one mode are compared whatever their modes are; else mode by mode.

    Raises:
        ConfigError: no case is on both sides.
    """
    ours, theirs = by_mode(first), by_mode(second)
    if len(ours) == len(theirs) == 1:
        pairs = [("", left, right) for left, right in zip(ours.values(), theirs.values(), strict=True)]
    else:
        pairs = [(mode, ours[mode], theirs[mode]) for mode in ours if mode in theirs]
    rows = [
        row
        for mode, left, right in pairs
        for case in left
        if case in right
        for row in _rows(mode, case, left[case], right[case])
    ]
    if not rows:
        raise ConfigError("no case (rate, input and output tokens) has results on both sides")
    return rows


def _rows(mode: str, case: Case, first: Sequence[Run], second: Sequence[Run]) -> Iterator[Row]:
    for figure, metric, statistic in _SAMPLED:
        sides = [[values for run in side if len(values := run.samples_ms(metric))] for side in (first, second)]
        if all(sides):
            yield _row(mode, case, figure, sides, statistic, higher_is_better=False)
    for figure, key in _RATES:
        rates = [[np.asarray([run.result[key]]) for run in side] for side in (first, second)]
        yield _row(mode, case, figure, rates, mean, higher_is_better=True)


def _row(
    mode: str,
    case: Case,
    figure: str,
    sides: Sequence[Sequence[Values]],
    statistic: Statistic,
    *,
    higher_is_better: bool,
) -> Row:
    first, second = sides
    over = ratio(first, second, statistic)
    if all(len(values) == 1 for side in sides for values in side) and min(map(len, sides)) < 2:
        over = Estimate(value=over.value, low=math.nan, high=math.nan)
    return Row(
        mode=mode,
        case=case,
        figure=figure,
        first=float(statistic(np.concatenate(first)[None, :])[0]),
        second=float(statistic(np.concatenate(second)[None, :])[0]),
        ratio=over,
        higher_is_better=higher_is_better,
        repetitions=(len(first), len(second)),
    )
