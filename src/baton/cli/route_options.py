"""Flags of `baton route`, made from the fields of RouterConfig."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baton.cli.flags import Flag, with_flags
from baton.router.config import RouterConfig
from baton.router.policies import POLICIES

_POLICIES = ", ".join(POLICIES)
FLAGS = {
    "host": Flag("--host", "Address to listen on."),
    "port": Flag("--port", "Port to listen on; 0 takes a free one."),
    "mode": Flag("--mode", "How KV moves; auto: push where a decode server has room, else pull."),
    "prefill_policy": Flag("--prefill-policy", f"How a prefill server is chosen: {_POLICIES}."),
    "decode_policy": Flag("--decode-policy", "How a decode server is chosen, by the same names."),
    "min_prefill_tokens": Flag(
        "--min-prefill-tokens", "A prompt with fewer uncached tokens is prefilled by its decode server."
    ),
    "max_attempts": Flag("--max-attempts", "Tries for one request, the first included."),
    "max_queue": Flag("--max-queue", "Requests that wait while all servers are full; one more is answered 429."),
    "outage_wait_s": Flag("--outage-wait-s", "Seconds that a request waits for a server that is down or starting."),
    "request_timeout_s": Flag("--request-timeout-s", "Seconds from arrival to the last token."),
    "health_interval_s": Flag("--health-interval-s", "Seconds between two looks at a server."),
    "health_timeout_s": Flag("--health-timeout-s", "A server that does not answer for so long is down."),
    "engine_timeout_s": Flag("--engine-timeout-s", "So is one whose engine says nothing for so long."),
    "lease_s": Flag("--lease-s", "A server that registered itself and is not heard of for so long is removed."),
    "session_header": Flag("--session-header", "Requests with the same value of it go to the same servers."),
    "drain_timeout_s": Flag("--drain-timeout-s", "Seconds that running requests may take after SIGTERM or Ctrl-C."),
    "max_body_bytes": Flag("--max-body-bytes", "Size limit of a request."),
    "api_keys": Flag("--api-key", "Ask clients for this key; may be given several times.", "BATON_API_KEY"),
    "admin_keys": Flag(
        "--admin-key",
        "Ask for this key before the fleet is changed; may be given several times. By default only this machine may.",
        "BATON_ROUTER_KEY",
    ),
    "limits_file": Flag("--limits-file", "JSON file of limits by API key."),
}


def with_route_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `config`, a RouterConfig, by one flag for each of its fields."""
    return with_flags(command, "config", RouterConfig, FLAGS, _config)


def _config(values: dict[str, Any]) -> RouterConfig:
    for name in ("api_keys", "admin_keys"):
        values[name] = tuple(values[name] or ())
    return RouterConfig(**values)
