"""The four Pareto plots: two definitions of a user's speed, two of a device's. Colour: time to first token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton.bench.pareto import PerDevice, PerUser, Point, frontier
from baton.bench.style import COLOURS, MARKERS, log_colours, pyplot, save

_PLACES = ((6, 5), (6, -12), (-20, -12), (-20, 5))
"""Of labels beside their points, a topology after the other, so that neighbours do not cover each other."""
_HALO = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.4}
_NAMES = {PerDevice.TOTAL: "total", PerDevice.OUTPUT: "output"}


def draw(points: Sequence[Point], stem: Path) -> str:
    """Write `stem`.png and .svg; returns the SVG.

    Raises:
        ConfigError: matplotlib is missing.
    """
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(11, 8.2), layout="constrained")
    norm = log_colours([max(point.median_ttft_ms, 1e-3) for point in points])
    groups = list(dict.fromkeys(point.group for point in points))
    for row, device in zip(axes, PerDevice, strict=True):
        for axis, user in zip(row, PerUser, strict=True):
            dots = _draw_axis(axis, points, groups, (user, device), norm)
            axis.set_xlabel(f"tokens/s/user = {user.value}")
            axis.set_ylabel(f"{_NAMES[device]} tokens/s/device")
    figure.colorbar(dots, ax=axes, label="median time to first token (ms)", shrink=0.7, format="%g")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)))
    figure.suptitle("Throughput against speed (line: frontier of a topology; label: c users, or requests/s)")
    return save(figure, stem)


def _draw_axis(
    axis: Any, points: Sequence[Point], groups: Sequence[str], kinds: tuple[PerUser, PerDevice], norm: Any
) -> Any:
    user, device = kinds
    dots = None
    for number, group in enumerate(groups):
        mine = [point for point in points if point.group == group and point.per_user[user] is not None]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        line = frontier(mine, user, device)
        x, y = [point.per_user[user] for point in line], [point.per_device[device] for point in line]
        axis.plot(x, y, color=colour, marker=marker, markersize=8, markerfacecolor="none", linewidth=1.3, label=group)
        dots = axis.scatter(
            [point.per_user[user] for point in mine],
            [point.per_device[device] for point in mine],
            c=[max(point.median_ttft_ms, 1e-3) for point in mine],
            norm=norm,
            cmap="plasma",
            marker=marker,
            edgecolors=colour,
            s=60,
            zorder=3,
        )
        style: Any = {"textcoords": "offset points", "fontsize": 8, "color": colour, "bbox": _HALO, "zorder": 2.5}
        for point in mine:
            place = (point.per_user[user], point.per_device[device])
            axis.annotate(point.label, place, xytext=_PLACES[number % len(_PLACES)], **style)
    axis.margins(0.12)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=-0.05 * axis.get_ylim()[1])  # room for labels below
    return dots
