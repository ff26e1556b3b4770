"""What a doctor knows of a fleet and of a machine before it judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.handoff import Role, TransferMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What one server says, and what can be seen of it from here.

    Attributes:
        error: why it says nothing; the rest is then not known.
        is_baton: else any OpenAI server, which is not asked for more than its models.
        state: "ready", "draining", "starting", "dead".
        told_role: what the router takes it for.
        transfer_modes: those that it does; empty where it is not told.
        note: why the router sends it nothing, in its words.
        side_channel_error: why nobody can connect there; "" when it is open.
        clock_offset_s: its clock minus this machine's.
        silent_s: since its engine process said anything.
    """

    url: str
    error: str = ""
    is_baton: bool = True
    state: str = "ready"
    models: tuple[str, ...] = ()
    fingerprint: str = ""
    role: Role | None = None
    told_role: Role | None = None
    note: str = ""
    transfer_modes: frozenset[TransferMode] = frozenset()
    side_channel: Endpoint | None = None
    side_channel_error: str = ""
    tp_size: int = 1
    clock_offset_s: float | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFacts:
    """What a router says of its fleet.

    Attributes:
        mode: "push", "pull", "auto", or "" where it is not told.
        unpaired: why it never pairs some workers that are no Baton servers, in its words.
    """

    url: str
    mode: str = ""
    unpaired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """A router and its workers; or, without a router, one server."""

    router: RouterFacts | None
    servers: tuple[ServerFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """This machine, and this Python.

    Attributes:
        python: its version.
        torch: version; "" when it cannot be loaded, and then torch_error says why.
        gpus: that torch sees.
        num_gpu_devices: that the system sees.
        backends: of NIXL, as asked for.
        nixl_error: why hand-offs cannot use them; "" when they can.
        shared_memory_bytes: free in /dev/shm; None where there is none.
        open_files: the most that a process may raise its limit to; None: no limit.
        taken_ports: of those that Baton takes by default.
        disk_free_bytes: by folder.
    """

    python: tuple[int, int, int]
    num_cores: int
    torch: str = ""
    torch_error: str = ""
    gpus: tuple[str, ...] = ()
    num_gpu_devices: int = 0
    backends: tuple[str, ...]
    nixl_error: str = ""
    shared_memory_bytes: int | None
    open_files: int | None
    taken_ports: tuple[int, ...] = ()
    disk_free_bytes: Mapping[str, int]
