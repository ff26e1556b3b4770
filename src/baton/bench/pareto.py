"""Throughput a device against speed a user, over topologies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from baton.bench.collection import Run
from baton.core.errors import ConfigError


class PerUser(Enum):
    """What "tokens/s/user" means. Both are published; they agree only while no request waits.

    TPOT: 1000 / median TPOT in ms (sa-bench, InferenceX): what a user sees once the answer runs. Waiting for the first
        token is not in it.
    SHARE: output tokens/s / users (vLLM's `bench sweep plot_pareto`); users are max_concurrency, in an open loop the
        most requests that were in flight in any second. Waiting is in it.
    """

    TPOT = "1000 / median TPOT (ms)"
    SHARE = "output tokens/s / users"


class PerDevice(Enum):
    """Which tokens are counted: all, prompts included, or those that were generated."""

    TOTAL = "total_token_throughput"
    OUTPUT = "output_throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run. per_user: tokens/s, None where it is not known; per_device: tokens/s."""

    group: str
    label: str
    median_ttft_ms: float
    p99_ttft_ms: float
    per_user: dict[PerUser, float | None]
    per_device: dict[PerDevice, float]
    num_devices: int
    failed: int


def point(run: Run, num_devices: int | None) -> Point:
    """Of one result.

    Args:
        num_devices: what the throughput is divided by; None: as the result says.

    Raises:
        ConfigError: nothing ended well in it.
    """
    result = run.result
    if not result["completed"]:
        raise ConfigError(f"{run.path}: no request ended well")
    users = result.get("max_concurrency") or result.get("max_concurrent_requests")
    tpot = result.get("median_tpot_ms")
    devices = num_devices or int(result.get("num_devices") or 1)
    named = result.get("max_concurrency")
    return Point(
        group=_group(result),
        label=f"c{named}" if named else f"{run.name.case.qps:g}/s",
        median_ttft_ms=result["median_ttft_ms"],
        p99_ttft_ms=result.get("p99_ttft_ms") or result["median_ttft_ms"],
        per_user={
            PerUser.TPOT: 1000 / tpot if tpot else None,
            PerUser.SHARE: result["output_throughput"] / users if users else None,
        },
        per_device={kind: result[kind.value] / devices for kind in PerDevice},
        num_devices=devices,
        failed=int(result.get("failed", 0)),
    )


def _group(result: Mapping[str, Any]) -> str:
    """The name of a line: the label that was given, else topology and mode."""
    mode = result.get("mode")
    parts = (result.get("topology"), None if mode == "none" else mode)
    return str(result.get("label") or " ".join(filter(None, parts)) or "one server")


def frontier(points: Sequence[Point], user: PerUser, device: PerDevice) -> list[Point]:
    """The points that no other beats in one respect without losing in the other, from few tokens/s/user to many."""

    def place(item: Point) -> tuple[float, float]:
        return item.per_user[user] or 0.0, item.per_device[device]

    best: list[Point] = []
    known = [item for item in points if item.per_user[user] is not None]
    for item in sorted(known, key=place, reverse=True):
        if not best or place(item)[1] > place(best[-1])[1]:
            best.append(item)
    return best[::-1]
