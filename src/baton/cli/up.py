"""`baton up MODEL --prefill N --decode M`: a fleet on this machine, with a router before it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from baton.cli import route_options
from baton.cli.engine_options import with_engine_options
from baton.cli.passing import as_flags, flag_names
from baton.cli.route_options import with_route_options
from baton.core.errors import ConfigError
from baton.engine.options import EngineOptions
from baton.obs.log import show_logs
from baton.router.config import RouterConfig

_ENGINE_FLAGS = {name: flag for name, flag in flag_names(EngineOptions).items() if name != "model"}
_SECRETS = ("api_keys", "admin_keys")
_FLEETS_OWN = ("port", "mode", "drain_timeout_s", *_SECRETS)
_ROUTE_FLAGS = {name: flag.name for name, flag in route_options.FLAGS.items() if name not in _FLEETS_OWN}


@with_engine_options
@with_route_options
def up(
    options: EngineOptions,
    config: RouterConfig,
    engine_flags: Annotated[
        list[str] | None,
        typer.Argument(
            help="Behind `--`: options of `baton serve` for every engine, such as -- --handoff-policy fail.",
            metavar="-- SERVE_OPTIONS",
            show_default=False,
        ),
    ] = None,
    prefill: Annotated[int, typer.Option(help="Engines that prefill.")] = 1,
    decode: Annotated[int, typer.Option(help="Engines that decode.")] = 1,
    log_dir: Annotated[Path | None, typer.Option(help="Folder for logs; by default a new one.")] = None,
    max_restarts: Annotated[int, typer.Option(help="Restarts of each process in ten minutes.")] = 20,
) -> None:
    """Serve a model with prefill and decode on separate engines until SIGTERM or Ctrl-C; a second one kills."""
    from baton.cluster.fleet import run_fleet
    from baton.cluster.fleet_plan import FleetConfig
    from baton.cluster.fleet_show import FleetDisplay

    show_logs()
    fleet = FleetConfig(
        model=options.model,
        num_prefill=prefill,
        num_decode=decode,
        mode=config.mode,
        port=config.port,
        log_dir=_folder(log_dir),
        device=options.device,
        serve_flags=(*as_flags(options, _ENGINE_FLAGS), *(engine_flags or ())),
        route_flags=tuple(as_flags(config, _ROUTE_FLAGS)),
        route_environment=_secrets(config),
        max_restarts=max_restarts,
        drain_timeout_s=config.drain_timeout_s,
    )
    raise typer.Exit(run_fleet(fleet, FleetDisplay()))


def _secrets(config: RouterConfig) -> Mapping[str, str]:
    """The router's keys as environment variables: arguments can be read by all."""
    given = {route_options.FLAGS[name].env: " ".join(getattr(config, name)) for name in _SECRETS}
    return {str(variable): keys for variable, keys in given.items() if keys}


def _folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="baton-up-"))
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make --log-dir {given}: {error.strerror}") from error
    return given
