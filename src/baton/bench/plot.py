"""Latency over the rate of requests, one panel an input length, one line a mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.bench.bootstrap import Estimate, estimate, median, ratio
from baton.bench.case import Case
from baton.bench.collection import Run, by_mode
from baton.bench.kinds import Metric
from baton.bench.style import colour_of, pyplot, save
from baton.core.errors import ConfigError

_TITLES = {Metric.TTFT: "Time to first token", Metric.TPOT: "Time per output token after the first"}
_PANEL_INCHES = (5.2, 3.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The median of one case in one mode (ms). num_failed: requests of it that failed."""

    qps: float
    median: Estimate
    num_runs: int
    num_requests: int
    num_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One input length: the points of each mode by rate, and push over pull where both are there."""

    input_tokens: int
    lines: Mapping[str, Sequence[Point]]
    ratios: Mapping[float, Estimate]


def panels(runs: Sequence[Run], metric: Metric, output_tokens: int) -> list[Panel]:
    """Of the cases with this output length, by input length. Cases without a sample are left out."""
    modes = by_mode(runs)
    lengths = sorted({run.name.case.input_tokens for run in runs if run.name.case.output_tokens == output_tokens})
    return [_panel(modes, metric, length, output_tokens) for length in lengths]


def _panel(
    modes: Mapping[str, Mapping[Case, Sequence[Run]]], metric: Metric, input_tokens: int, output_tokens: int
) -> Panel:
    def chosen(case: Case) -> bool:
        return case.input_tokens == input_tokens and case.output_tokens == output_tokens

    samples = {
        mode: {
            case.qps: values
            for case, runs in cases.items()
            if chosen(case) and (values := [found for run in runs if len(found := run.samples_ms(metric.value))])
        }
        for mode, cases in modes.items()
    }
    lines = {
        mode: [
            Point(
                qps=case.qps,
                median=estimate(samples[mode][case.qps], median),
                num_runs=len(runs),
                num_requests=sum(len(values) for values in samples[mode][case.qps]),
                num_failed=sum(run.result.get("failed", 0) for run in runs),
            )
            for case, runs in cases.items()
            if chosen(case) and case.qps in samples[mode]
        ]
        for mode, cases in modes.items()
    }
    push, pull = samples.get("push", {}), samples.get("pull", {})
    ratios = {qps: ratio(push[qps], pull[qps], median) for qps in push if qps in pull}
    return Panel(input_tokens=input_tokens, lines={m: line for m, line in lines.items() if line}, ratios=ratios)


def draw(shown: Sequence[Panel], metric: Metric, output_tokens: int, stem: Path) -> str:
    """Write `stem`.png and .svg; returns the SVG.

    Raises:
        ConfigError: there is nothing to draw, or matplotlib is missing.
    """
    if not any(panel.lines for panel in shown):
        raise ConfigError(f"no result has samples of {metric.value}")
    plt = pyplot()
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.8)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    modes = sorted({mode for panel in shown for mode in panel.lines})
    for axis, panel in zip(axes.flat, shown, strict=False):
        _draw_panel(axis, panel, metric, modes)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    figure.suptitle(f"{_TITLES[metric]}, {output_tokens} output tokens\n(median; band: 95 % confidence)", fontsize=12)
    handles = _legend(axes.flat, modes)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles))
    return save(figure, stem)


def _draw_panel(axis: Any, panel: Panel, metric: Metric, modes: list[str]) -> None:
    places = {qps: place for place, qps in enumerate(sorted({p.qps for line in panel.lines.values() for p in line}))}
    for mode, line in panel.lines.items():
        colour = colour_of(mode, modes)
        x = [places[point.qps] for point in line]
        axis.plot(x, [point.median.value for point in line], color=colour, marker="o", markersize=4, label=mode)
        low, high = [point.median.low for point in line], [point.median.high for point in line]
        if len(x) > 1:
            axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.vlines(x, low, high, color=colour, alpha=0.6, linewidth=1.2)
    axis.set_title(f"{panel.input_tokens} input tokens")
    axis.set_ylabel(f"{metric.value.upper()} (ms)")
    axis.set_xlabel("requests/s" + (" and push / pull" if panel.ratios else ""))
    labels = [f"{qps:g}" + (f"\n{panel.ratios[qps].value:.2f}x" if qps in panel.ratios else "") for qps in places]
    axis.set_xticks(list(places.values()), labels)
    axis.set_xlim(-0.4, len(places) - 0.6)
    top = max(point.median.high for line in panel.lines.values() for point in line)
    axis.set_ylim(0, top * 1.1)


def _legend(axes: Any, modes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis in axes:
        found |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    return {mode: found[mode] for mode in modes if mode in found}
