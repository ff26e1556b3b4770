"""GET /stats: what a server says of itself, to its page, to a router and to whoever looks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from baton.core.handoff import Role
from baton.server.engine_client import EngineClient
from baton.server.metrics import ServerMetrics


def stats_body(
    metrics: ServerMetrics, engine: EngineClient, *, models: Sequence[str], chat: bool, now: float | None = None
) -> dict[str, object]:
    """The body, of this moment.

    Args:
        engine: has been ready once.
        models: names it is served under.
        chat: conversations can be rendered.
    """
    body: dict[str, object] = {
        "state": engine.state.value,
        "engine_silent_s": round(engine.silent_s, 3),
        "served": served_facts(metrics.model_name, engine, models=models, chat=chat),
        "pools": pools(engine),
        **metrics.snapshot(now),
    }
    peer, figures = engine.info.peer, metrics.handoff_snapshot(now)
    if peer is not None and figures is not None:
        body["handoff"] = {**msgspec.to_builtins(peer), **figures}
    return body


def served_facts(name: str, engine: EngineClient, *, models: Sequence[str], chat: bool) -> dict[str, object]:
    """What is served, by which incarnation of the engine. Lengths in tokens."""
    info = engine.info
    return {
        "model": name,
        "models": list(models),
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "fingerprint": info.fingerprint,
        "incarnation": info.incarnation,
        "role": (Role.MIXED if info.peer is None else info.peer.role).value,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "kv_cache_tokens": info.kv_cache_tokens,
        "block_tokens": info.block_tokens,
        "num_blocks": info.num_blocks,
        "chat": chat,
        "version": version("baton"),
    }


def pools(engine: EngineClient) -> dict[str, int]:
    """Who holds what in the engine. All but total_blocks are 0 when nothing runs and nothing is kept for others."""
    stats, transfer = engine.stats, engine.transfer_stats
    return {
        "used_blocks": stats.used_blocks,
        "total_blocks": engine.info.num_blocks,
        "pinned_blocks": stats.pinned_blocks,
        "quarantined_blocks": stats.quarantined_blocks,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "num_reserved": stats.num_reserved,
        "num_leased": transfer.num_leased,
        "num_in_flight": transfer.num_in_flight,
    }
