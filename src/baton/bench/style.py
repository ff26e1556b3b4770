"""How all plots look, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind readers too."""
MARKERS = "osD^vP*"
_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "baton",
    "svg.fonttype": "path",
    "figure.dpi": 130,
}


def colour_of(mode: str, modes: list[str]) -> str:
    """Push and pull have theirs in every plot."""
    fixed = {"push": COLOURS[0], "pull": COLOURS[1]}
    others = [name for name in modes if name not in fixed]
    return fixed[mode] if mode in fixed else COLOURS[2 + others.index(mode) % (len(COLOURS) - 2)]


def pyplot() -> Any:
    """matplotlib.pyplot without a screen.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'baton[bench]'") from error
    matplotlib.use("Agg")
    matplotlib.rcParams.update(_STYLE)
    import matplotlib.pyplot as plt

    return plt


def log_colours(values: Sequence[float]) -> Any:
    """A scale of colours over positive values, by their logarithm."""
    from matplotlib.colors import LogNorm

    return LogNorm(min(values) * 0.999, max(values) * 1.001)


def save(figure: Any, stem: Path) -> str:
    """As PNG and as SVG; returns the SVG's text, without its XML header, for a page."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(stem.with_name(stem.name + ".png"))
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().decode()
    stem.with_name(stem.name + ".svg").write_text(text)
    pyplot().close(figure)
    return text[text.index("<svg") :]
