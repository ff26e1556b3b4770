"""What a server holds, and waiting until it is at rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

_POOLS = (
    *("used_blocks", "pinned_blocks", "quarantined_blocks", "num_running", "num_waiting"),
    *("num_reserved", "num_leased", "num_in_flight"),
)


def get_json(url: str) -> dict[str, Any]:
    """A JSON object; empty when there is none."""
    try:
        found = httpx.get(url, timeout=3).json()
    except (httpx.TransportError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def held(name: str, stats: dict[str, Any]) -> list[str]:
    """What of a server's pools is not free, in words.

    Args:
        stats: its GET /stats.
    """
    pools = stats.get("pools")
    if pools is None:
        return [f"{name} does not tell its pools"]
    return [f"{name}: {pool} {pools[pool]}" for pool in _POOLS if pools[pool]]


def wait_for_nothing(told: Callable[[], list[str]], timeout_s: float) -> tuple[list[str], float]:
    """Ask until the list is empty; returns what it still held at the end, and the seconds that went by."""
    began_s = time.monotonic()
    while (left := told()) and time.monotonic() - began_s < timeout_s:
        time.sleep(0.05)
    return left, time.monotonic() - began_s
