"""`baton`: one command a verb."""

from __future__ import annotations

import sys

import typer

from baton.cli.chat import chat
from baton.cli.generate import generate
from baton.core.errors import UserError

app = typer.Typer(
    help="Baton: LLM serving with prefill and decode on separate engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)


def main() -> None:
    """Run the command line. What the user can mend ends as one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"baton: {error}", file=sys.stderr)
        sys.exit(2)
