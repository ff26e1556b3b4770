"""`baton`: one command a verb."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from baton.cli.bench import bench
from baton.cli.chat import chat
from baton.cli.doctor import doctor
from baton.cli.generate import generate
from baton.cli.route import route
from baton.cli.serve import serve
from baton.cli.up import up
from baton.core.errors import EngineDeadError, UserError

app = typer.Typer(
    help="Baton: run a language model here, or serve it over HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(route)
app.command()(up)
app.command()(doctor)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line."""
    run_reporting(app)


def run_reporting(command: Callable[[], object]) -> None:
    """Run it. What the user can mend ends as one line on stderr and exit code 2, an engine that dies in code 1."""
    try:
        command()
    except UserError as error:
        print(f"baton: {error}", file=sys.stderr)
        sys.exit(2)
    except EngineDeadError as error:
        print(f"baton: the engine did not start: {error}", file=sys.stderr)
        sys.exit(1)
