"""`baton`: one command a verb."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from baton.cli.chat import chat
from baton.cli.generate import generate
from baton.cli.serve import serve
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
