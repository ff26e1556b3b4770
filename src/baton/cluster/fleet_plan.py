"""What a local fleet consists of: one process each, with its command and its environment. Decisions only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from baton.core.errors import ConfigError
from baton.router.config import Mode

BATON = (sys.executable, "-m", "baton")
_GPU_DEVICES = ("auto", "cuda")
_LOOPBACK = "127.0.0.1"


class MemberKind(Enum):
    """What a process of a fleet is; in the order in which they end."""

    ROUTER = "router"
    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """One process.

    Attributes:
        command: without its port.
        port: 0 takes a free one at the first start, and keeps it.
        environment: what it gets beyond the environment of this process.
    """

    name: str
    kind: MemberKind
    command: tuple[str, ...]
    port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet of one model on this machine.

    Attributes:
        num_prefill, num_decode: engines of each role.
        mode: of the router.
        port: of the router; 0 takes a free one.
        device: as in EngineOptions; engines on CUDA devices get one each, round robin.
        serve_flags, route_flags: what each engine, and the router, is told beside roles and addresses.
        route_environment: secrets of the router, which do not belong into arguments.
        max_restarts: of each process in ten minutes.
        drain_timeout_s: how long running requests may take once the fleet is told to end.
    """

    model: str
    num_prefill: int
    num_decode: int
    mode: Mode
    port: int
    log_dir: Path
    device: str = "auto"
    serve_flags: tuple[str, ...] = ()
    route_flags: tuple[str, ...] = ()
    route_environment: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 20
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("num_prefill", "num_decode"):
            if getattr(self, name) < 1:
                flag = name.replace("num_", "--")
                raise ConfigError(f"{flag} must be at least 1; for one engine without hand-offs use `baton serve`")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts must not be negative, got {self.max_restarts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What engines share.

    Attributes:
        gpus: as CUDA_VISIBLE_DEVICES names them.
    """

    num_cores: int
    gpus: tuple[str, ...] = ()


def this_machine(environment: Mapping[str, str], devices: Path = Path("/dev")) -> Machine:
    """The cores that this process may use, and the CUDA devices that it sees (Linux)."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        gpus = tuple(name.strip() for name in named.split(",") if name.strip() not in ("", "-1"))
    else:
        gpus = tuple(str(index) for index, _ in enumerate(devices.glob("nvidia[0-9]*")))
    return Machine(num_cores=num_cores, gpus=gpus)


def engine_plans(config: FleetConfig, machine: Machine, environment: Mapping[str, str]) -> list[MemberPlan]:
    """The engines: prefill first.

    Args:
        environment: of this process; what a person has set there is left alone.
    """
    kinds = [MemberKind.PREFILL] * config.num_prefill + [MemberKind.DECODE] * config.num_decode
    numbers = [*range(config.num_prefill), *range(config.num_decode)]
    return [
        MemberPlan(
            name=f"{kind.value}-{number}",
            kind=kind,
            command=_serve_command(config, kind),
            environment=_share(config, machine, environment, index, len(kinds)),
        )
        for index, (kind, number) in enumerate(zip(kinds, numbers, strict=True))
    ]


def _serve_command(config: FleetConfig, kind: MemberKind) -> tuple[str, ...]:
    roles = ("--role", kind.value, "--side-channel-port", "0")
    place = ("--host", _LOOPBACK, "--side-channel-host", _LOOPBACK, "--drain-timeout-s", str(config.drain_timeout_s))
    # The server in front outlives its engine, which is back sooner that way than as a new pair of processes.
    return (*BATON, "serve", config.model, *roles, *place, "--restart-engine", *config.serve_flags)


def _share(
    config: FleetConfig, machine: Machine, environment: Mapping[str, str], index: int, num_engines: int
) -> dict[str, str]:
    """Its part of the machine."""
    share = {}
    if "OMP_NUM_THREADS" not in environment:
        share["OMP_NUM_THREADS"] = str(max(1, machine.num_cores // num_engines))
    if machine.gpus and config.device in _GPU_DEVICES:
        share["CUDA_VISIBLE_DEVICES"] = machine.gpus[index % len(machine.gpus)]
    return share


def router_plan(config: FleetConfig, prefill_urls: Sequence[str], decode_urls: Sequence[str]) -> MemberPlan:
    """The router in front of engines that listen at these URLs."""
    workers = [part for url in prefill_urls for part in ("--prefill", url)]
    workers += [part for url in decode_urls for part in ("--decode", url)]
    mode = ("--mode", config.mode.value, "--drain-timeout-s", str(config.drain_timeout_s))
    return MemberPlan(
        name="router",
        kind=MemberKind.ROUTER,
        command=(*BATON, "route", *workers, *mode, *config.route_flags),
        port=config.port,
        environment=config.route_environment,
    )
