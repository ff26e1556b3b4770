"""`baton serve MODEL`: an OpenAI-compatible HTTP server over one engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.engine_options import with_engine_options
from baton.cli.handoff_options import with_handoff_options
from baton.cli.server_options import with_server_options
from baton.engine.handoff_options import PEER_SECRET, HandoffOptions
from baton.engine.options import EngineOptions
from baton.obs.log import show_logs
from baton.server.config import ServerConfig

if TYPE_CHECKING:
    from baton.cluster.launch import EngineLaunch
    from baton.cluster.service import Announce
    from baton.server.engine_client import EngineClient

_MAX_RESTARTS = 3


@with_engine_options
@with_server_options
@with_handoff_options
def serve(
    options: EngineOptions,
    config: ServerConfig,
    handoff: HandoffOptions,
    restart_engine: Annotated[
        bool, typer.Option(help="Start the engine again when it dies, up to 3 times in 10 minutes; else end.")
    ] = False,
    log_stats: Annotated[bool, typer.Option("--log-stats", help="Log throughput and load every 10 seconds.")] = False,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="Send a span for each request to this OpenTelemetry collector.")
    ] = None,
    router: Annotated[
        str | None, typer.Option(help="Register at this router (URL) for as long as the server takes requests.")
    ] = None,
    router_key: Annotated[
        str | None, typer.Option(help="Key that the router asks for.", envvar="BATON_ROUTER_KEY")
    ] = None,
    peer_secret: Annotated[
        str | None, typer.Option(help="Secret that engines of one fleet share.", envvar=PEER_SECRET)
    ] = None,
) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C; a second one aborts what still runs."""
    from baton.cluster.launch import model_launch

    if peer_secret is not None:
        os.environ[PEER_SECRET] = peer_secret  # to the engine process by its environment: arguments can be read by all

    monitoring = Monitoring(log_stats=log_stats, otlp_traces_endpoint=otlp_traces_endpoint)
    announce = None if router is None else _announce(config, handoff, router, router_key)
    launch = model_launch(options, handoff)
    raise typer.Exit(run_server(config, launch, monitoring, restart_engine=restart_engine, announce=announce))


def _announce(config: ServerConfig, handoff: HandoffOptions, router: str, router_key: str | None) -> Announce:
    from baton.cluster.registration import Registration, keep_registered

    registration = Registration(
        router=router, router_key=router_key, api_key=next(iter(config.api_keys), None), host=handoff.advertise_host
    )
    return lambda url: keep_registered(registration, url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What the server tells about itself, besides /metrics."""

    log_stats: bool = False
    otlp_traces_endpoint: str | None = None


def run_server(
    config: ServerConfig,
    launch: EngineLaunch,
    monitoring: Monitoring,
    *,
    restart_engine: bool,
    announce: Announce | None = None,
) -> int:
    """Serve one engine with the OpenAI API; returns the exit code. announce: see `run_service`.

    Raises:
        BatonError: it could not start; see `baton.cluster.service.run_service`.
    """
    from baton.cluster.service import ServiceConfig, run_service

    show_logs()
    service = ServiceConfig(
        host=config.host,
        port=config.port,
        max_restarts=_MAX_RESTARTS if restart_engine else 0,
        drain_timeout_s=config.drain_timeout_s,
    )
    return run_service(service, launch, lambda client: _front(config, monitoring, client), announce)


@asynccontextmanager
async def _front(config: ServerConfig, monitoring: Monitoring, client: EngineClient) -> AsyncIterator[Any]:
    """The HTTP application of a ready engine, with what runs beside it."""
    from baton.obs.trace import otlp_tracer
    from baton.server.app import create_app
    from baton.server.log_stats import log_stats
    from baton.server.metrics import ServerMetrics
    from baton.text.tokenizer import load_tokenizer

    info = client.info
    tokenizer = load_tokenizer(Path(info.tokenizer)) if info.tokenizer else None
    endpoint = monitoring.otlp_traces_endpoint
    tracer = None if endpoint is None else otlp_tracer(endpoint)
    metrics = ServerMetrics(info, (*config.served_model_names, info.model)[0], tracer=tracer)
    client.on_output(metrics.on_output)
    logging = asyncio.create_task(log_stats(metrics.figures)) if monitoring.log_stats else None
    try:
        yield create_app(config, client, tokenizer, metrics)
    finally:
        if logging is not None:
            logging.cancel()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
