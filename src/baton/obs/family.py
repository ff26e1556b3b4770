"""A metric family as plain values; obs/metrics.py shows it to Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.obs.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One name, and its value for each set of labels.

    Attributes:
        name: of a counter without the ending _total.
        values: (label values, number) of a counter or gauge.
        histograms: (label values, histogram); then there are no `values`.
        counts: the numbers only grow.
    """

    name: str
    help_text: str
    labels: tuple[str, ...] = ()
    values: Sequence[tuple[tuple[str, ...], float]] = ()
    histograms: Sequence[tuple[tuple[str, ...], Histogram]] = ()
    counts: bool = False
