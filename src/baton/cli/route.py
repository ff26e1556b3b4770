"""`baton route`: one HTTP address in front of a fleet of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.cli.route_options import with_route_options
from baton.obs.log import show_logs
from baton.router.config import RouterConfig


@with_route_options
def route(
    config: RouterConfig,
    prefill: Annotated[
        list[str] | None, typer.Option(help="URL of a server that prefills; may be given several times.")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option(help="URL of a server that decodes; may be given several times.")
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(help="URL of a server that tells its role, or serves requests whole.")
    ] = None,
    workers_file: Annotated[
        Path | None, typer.Option(help="JSON list of more of them, each as POST /workers takes it.")
    ] = None,
) -> None:
    """Route requests to a fleet until SIGTERM or Ctrl-C; a second one breaks off what still runs.

    Servers may be down at first, and more may come and go at run time: see POST /workers.
    """
    from baton.cluster.routing import run_router
    from baton.router.naming import named_workers

    show_logs()
    specs = named_workers(prefill or (), decode or (), worker or (), workers_file)
    raise typer.Exit(run_router(config, specs))
