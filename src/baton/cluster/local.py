"""One engine process on this machine: started, watched, stopped, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from baton.cluster.launch import EngineLaunch
from baton.obs.log import get_logger
from baton.server.engine_client import EngineClient, EngineState

_log = get_logger(__name__)
_LAST_WORD_S = 0.1  # for a message that the engine sent before its end
_STOP_S = 2.0
_TERMINATE_S = 2.0


class LocalEngine:
    """An engine process and the client that talks to it. The client stays the same over restarts.

    Attributes:
        ended: set while there is no process, or only a dead one.
    """

    def __init__(self, launch: EngineLaunch) -> None:
        self.client = EngineClient()
        self.ended = asyncio.Event()
        self.ended.set()
        self._launch = launch
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs; None when there is none."""
        return None if self._process is None or self.ended.is_set() else self._process.pid

    async def start(self) -> None:
        """Start a process and wait until it takes requests. After an error the process has ended or is ending.

        Raises:
            UserError: it could not start, and the user can mend that.
            EngineDeadError: it could not start.
        """
        assert self.ended.is_set(), "the engine runs already"
        address = self.client.listen()
        # What libraries print must not mix with what the server prints: both logs go to stderr.
        self._process = await asyncio.create_subprocess_exec(
            *self._launch.command(address, os.getpid()), stdin=asyncio.subprocess.DEVNULL, stdout=sys.__stderr__
        )
        self.ended.clear()
        self._watcher = asyncio.create_task(self._watch(self._process))
        await self.client.start()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        await asyncio.sleep(_LAST_WORD_S)
        if not self._stopping:
            _log.error("the engine process %d ended: %s", process.pid, describe_exit(code))
        self.client.lost(f"the engine process ended: {describe_exit(code)}")
        self.ended.set()

    async def stop(self) -> None:
        """End the process, by force if it does not end by itself, and close the client."""
        self._stopping = True
        loading = self.client.state is EngineState.STARTING
        await self.client.close()
        if self._process is None or self._watcher is None:
            return
        if loading or not await self._ended_within(_STOP_S):  # one that loads reads no messages
            self._signal(signal.SIGTERM)
            if not await self._ended_within(_TERMINATE_S):
                self._signal(signal.SIGKILL)
        await self._watcher

    async def _ended_within(self, seconds: float) -> bool:
        assert self._watcher is not None
        done, _ = await asyncio.wait({self._watcher}, timeout=seconds)
        return bool(done)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)


def describe_exit(code: int) -> str:
    """An exit status as a person would say it; negative codes are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"killed by signal {name}"
