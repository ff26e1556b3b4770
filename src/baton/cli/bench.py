"""`baton bench`: measure a server, and make something of what was measured."""

from __future__ import annotations

import typer

from baton.cli.bench_accuracy import accuracy
from baton.cli.bench_profile import profile
from baton.cli.bench_reports import compare, pareto, plot
from baton.cli.bench_run import run
from baton.cli.bench_sweep import sweep

bench = typer.Typer(
    help="Measure an OpenAI-compatible server: latency, throughput, accuracy; compare and plot.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (run, sweep, compare, plot, pareto, accuracy, profile):
    bench.command()(_command)
