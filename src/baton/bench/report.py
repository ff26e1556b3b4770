"""A page with plots and tables that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from baton.bench.collection import Run
from baton.bench.pareto import PerDevice, PerUser
from baton.bench.pareto import Point as ParetoPoint
from baton.bench.plot import Panel
from baton.bench.words import number

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222;
       background: #fff }
svg { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.wide { overflow-x: auto }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem } dt { color: #666 } dd { margin: 0 }
"""
_MACHINE = ("host", "cpu", "usable_cores", "gpus", "platform", "python", "git")


def page(title: str, parts: Iterable[str]) -> str:
    """HTML without scripts and without anything from elsewhere."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text and numbers (two digits behind the point)."""

    def cell(value: Any) -> str:
        return escape(number(value) if isinstance(value, float) else str(value))

    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def latency_table(shown: Sequence[Panel], metric: str) -> str:
    """The numbers behind a plot."""
    headings = ("case", f"median {metric} ms", "95 % from", "to", "push / pull", "from", "to", "runs", "requests")
    rows = []
    for panel in shown:
        for mode, line in panel.lines.items():
            for point in line:
                over = panel.ratios.get(point.qps) if mode == "push" else None
                ratios = ("", "", "") if over is None else (over.value, over.low, over.high)
                case = f"{mode}, {panel.input_tokens} in, {point.qps:g}/s"
                found = (point.median.value, point.median.low, point.median.high)
                failed = f" ({point.num_failed} failed)" if point.num_failed else ""
                rows.append((case, *found, *ratios, point.num_runs, f"{point.num_requests}{failed}"))
    return table(headings, rows)


def pareto_table(points: Sequence[ParetoPoint]) -> str:
    """The numbers behind the Pareto plots; times to first token beside them, so that a queue cannot hide."""
    users = ["tok/s/user by TPOT", "by share"]
    devices = ["total tok/s/device", "output"]
    rows = [
        (
            f"{point.group} {point.label}",
            point.median_ttft_ms,
            point.p99_ttft_ms,
            *("" if (value := point.per_user[kind]) is None else value for kind in PerUser),
            *(point.per_device[kind] for kind in PerDevice),
            point.num_devices,
            point.failed,
        )
        for point in points
    ]
    return table(("run", "median TTFT ms", "P99", *users, *devices, "devices", "failed"), rows)


def circumstances(runs: Sequence[Run]) -> str:
    """On what the runs were made, and what their clients complained of; each distinct one once."""
    machines = {
        tuple((key, str(run.result["environment"].get(key))) for key in _MACHINE)
        for run in runs
        if isinstance(run.result.get("environment"), dict)
    }
    lists = [
        "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in machine) + "</dl>"
        for machine in sorted(machines)
    ]
    warnings = [(run.path.name, warning) for run in runs for warning in run.result.get("warnings", ())]
    told = "<h2>Warnings</h2>" + table(("run", "warning"), warnings) if warnings else ""
    return ("<h2>Measured on</h2>" + "".join(lists) if lists else "") + told


def write(html: str, path: Path) -> None:
    """The page as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html)
