"""Waiting for one of several things, and ending what is waited for no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any


async def first(*waits: Awaitable[object]) -> None:
    """Until any of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, if it runs, and wait for its end."""
    task.cancel()
    await asyncio.wait({task})


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Finish `work`, or give it up when the event is set; returns whether it finished. Raises what it raises."""
    task, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        stopping.cancel()
        await cancelled(task)
