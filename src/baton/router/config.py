"""What a user may say about a router."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from baton.core.errors import ConfigError


class Mode(Enum):
    """PUSH, PULL: every pair works that way. AUTO: push where a decode worker can be chosen now, else pull."""

    PUSH = "push"
    PULL = "pull"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Options of one router.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        prefill_policy, decode_policy: names of `router/policies.py`.
        min_prefill_tokens: a prompt with fewer uncached tokens is prefilled by its decode worker.
        max_attempts: tries for one request, the first included.
        max_queue: requests that wait while all workers are full; one more is answered 429.
        outage_wait_s: a request that nobody can take now waits so long for a worker that is down or starting; then 503.
        request_timeout_s: from arrival to the last token; 504 after it.
        health_interval_s, health_timeout_s: between two looks at a worker, and until one that does not answer is down.
        engine_timeout_s: an engine that says nothing for so long, behind a server that answers, counts as dead; longer
            than any step takes. Once it is silent for health_timeout_s it gets nothing new.
        lease_s: a registered worker that is not heard of for so long is removed.
        session_header: requests with the same value go to the same workers.
        drain_timeout_s: how long running requests may take after the router was told to stop.
        max_body_bytes: of a request; more is answered 413.
        api_keys: any of these is accepted from clients; empty: no key is asked for.
        admin_keys: for changing the fleet; empty: only peers on the loopback may.
        limits_file: limits by API key, see `router/tenants.py`; None: none.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    mode: Mode = Mode.AUTO
    prefill_policy: str = "least_tokens"
    decode_policy: str = "free_blocks"
    min_prefill_tokens: int = 0
    max_attempts: int = 4
    max_queue: int = 1024
    outage_wait_s: float = 10.0
    request_timeout_s: float = 600.0
    health_interval_s: float = 0.5
    health_timeout_s: float = 2.0
    engine_timeout_s: float = 10.0
    lease_s: float = 15.0
    session_header: str = "x-session-id"
    drain_timeout_s: float = 30.0
    max_body_bytes: int = 32 << 20
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    limits_file: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_attempts", "max_queue", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("request_timeout_s", "health_interval_s", "health_timeout_s", "engine_timeout_s", "lease_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
