"""A run as it goes on: one line of live rates on a terminal, nothing elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.bench.load import Live

_EVERY_S = 0.25
_RECENT = 200


@asynccontextmanager
async def shown(live: Live, label: str) -> AsyncIterator[None]:
    """Show a run while it goes on."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn(label), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=live.total)
        showing = asyncio.create_task(_show(progress, task, live))
        try:
            yield
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing


async def _show(progress: Progress, task: TaskID, live: Live) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        progress.update(task, completed=live.num_ended, description=live_line(live, time.perf_counter()))
        progress.refresh()


def live_line(live: Live, now_s: float) -> str:
    """In words: rates so far, requests in flight, TTFT of the latest, failures."""
    took_s = max(now_s - live.start_s, 1e-9)
    parts = [
        f"{live.num_sent / took_s:.1f} sent/s",
        f"{live.num_sent - live.num_ended} in flight",
        f"{live.num_tokens / took_s:.0f} tok/s",
    ]
    if live.ttft_s:
        parts.append(f"TTFT p50 {float(np.median(live.ttft_s[-_RECENT:])) * 1e3:.0f} ms")
    if live.lag_s > 0.01:
        parts.append(f"[yellow]sent {live.lag_s * 1e3:.0f} ms late[/]")
    if live.num_failed:
        parts.append(f"[red]{live.num_failed} failed[/]")
    return ", ".join(parts)
