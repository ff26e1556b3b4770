"""Ends what a task waits for, from outside, with a reason: the client left, time is up, a worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Interrupt:
    """For the task that makes it. Call it to end what that task waits for.

    A task that catches CancelledError asks `cause`: what it was interrupted with, or None when it was truly cancelled.
    The first call counts until its cause is taken.
    """

    __slots__ = ("_reason", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._reason: Exception | None = None

    def __call__(self, reason: Exception) -> None:
        """Interrupt, with this to be raised."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def cause(self) -> Exception | None:
        """Why the task was interrupted; it may go on then, and be interrupted again."""
        reason, self._reason = self._reason, None
        if reason is not None:
            self._task.uncancel()
        return reason


class Lookout:
    """Calls back when an event is set. One waiting task an event, not one a call: requests share workers."""

    def __init__(self) -> None:
        self._callbacks: dict[asyncio.Event, dict[object, Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, event: asyncio.Event, key: object, callback: Callable[[], None]) -> None:
        """Call `callback` once the event is set; at once if it is."""
        if event.is_set():
            callback()
        elif event in self._callbacks:
            self._callbacks[event][key] = callback
        else:
            self._callbacks[event] = {key: callback}
            task = asyncio.get_running_loop().create_task(self._wait(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def remove(self, event: asyncio.Event, key: object) -> None:
        """Do not call back any more."""
        callbacks = self._callbacks.get(event)
        if callbacks is not None:
            callbacks.pop(key, None)

    async def close(self) -> None:
        """End all waiting."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, event: asyncio.Event) -> None:
        try:
            await event.wait()
        finally:
            callbacks = self._callbacks.pop(event)
        for callback in list(callbacks.values()):
            callback()
