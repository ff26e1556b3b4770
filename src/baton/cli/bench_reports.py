"""`baton bench compare`, `plot` and `pareto`: what result files say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.bench.kinds import Metric

_PLACE = "A result file, a folder, or a folder and how names begin (results/push)."
_Results = Annotated[Path, typer.Option("--results-dir", help="Folder of result files.", show_default=False)]
_Output = Annotated[Path | None, typer.Option(help="Folder for what is drawn; by default that of the results.")]


def compare(
    first: Annotated[str, typer.Argument(help=_PLACE, show_default=False)],
    second: Annotated[str, typer.Argument(help="The same, to compare with.", show_default=False)],
) -> None:
    """Ratios FIRST / SECOND with 95 % confidence intervals, cases matched by rate and lengths."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from baton.bench.collection import find
    from baton.bench.compare import compare as compared
    from baton.bench.words import number

    table = Table(box=SIMPLE_HEAD)
    for heading in ("case", "figure", "first", "second", "ratio", "95 %", "first is", "runs"):
        table.add_column(heading, justify="left" if heading in ("case", "figure", "first is") else "right")
    for row in compared(find(first), find(second)):
        case = f"{row.mode} {row.case.qps:g}/s in {row.case.input_tokens} out {row.case.output_tokens}".strip()
        interval = "" if row.verdict == "?" else f"{row.ratio.low:.3f} to {row.ratio.high:.3f}"
        runs = f"{row.repetitions[0]}, {row.repetitions[1]}"
        values = (number(row.first), number(row.second), f"{row.ratio.value:.3f}", interval)
        table.add_row(case, row.figure, *values, row.verdict, runs)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    console.print(table)
    console.print("ratio: first / second. An interval over one run a side knows nothing of what differs between runs.")


def plot(
    results: _Results,
    metric: Annotated[Metric, typer.Option(help="What is shown.")] = Metric.TTFT,
    output_dir: _Output = None,
) -> None:
    """Push against pull over the rate, one panel an input length: PNG, SVG, and a page that needs nothing else."""
    from baton.bench.collection import find
    from baton.bench.plot import draw, panels
    from baton.bench.report import circumstances, latency_table, page, write

    runs, folder = find(str(results)), output_dir or results
    for output_tokens in sorted({run.name.case.output_tokens for run in runs}):
        stem = folder / f"{metric.value}_out{output_tokens}"
        shown = panels(runs, metric, output_tokens)
        svg = draw(shown, metric, output_tokens, stem)
        title = f"{metric.value.upper()} over the request rate, {output_tokens} output tokens"
        parts = (svg, latency_table(shown, metric.value.upper()), circumstances(runs))
        write(page(title, parts), stem.with_suffix(".html"))
        print(f"written: {stem}.png, .svg, .html")


def pareto(
    results: Annotated[list[str], typer.Argument(help=_PLACE, show_default=False)],
    devices: Annotated[
        int | None, typer.Option(help="GPUs (or other devices) that served; by default as each result says.")
    ] = None,
    output_dir: Annotated[Path, typer.Option(help="Folder for what is drawn.")] = Path("."),
) -> None:
    """Tokens/s/device against tokens/s/user, in both published definitions: PNG, SVG, and a page."""
    from baton.bench.collection import find
    from baton.bench.pareto import point
    from baton.bench.pareto_plot import draw
    from baton.bench.report import circumstances, page, pareto_table, write

    runs = [run for place in results for run in find(place)]
    points = [point(run, devices) for run in runs]
    stem = output_dir / "pareto"
    svg = draw(points, stem)
    title = "Throughput against speed"
    write(page(title, (svg, pareto_table(points), circumstances(runs))), stem.with_suffix(".html"))
    print(f"written: {stem}.png, .svg, .html")
