"""One process of a fleet on this machine: started, watched, started again on the same port, ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from baton.cluster.fleet_plan import MemberPlan
from baton.cluster.local import describe_exit
from baton.cluster.restarts import RestartBudget
from baton.obs.log import get_logger

_log = get_logger(__name__)
_READY = "Baton is ready at "
_FIRST_DELAY_S, _MOST_DELAY_S = 0.2, 5.0
_STEADY_S = 10.0  # one that was ready for so long has not died of its start
_LAST_WORD_S = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def delay_s(num_quick_deaths: int) -> float:
    """How long to wait before the next start, after so many deaths in a row that came soon after a start."""
    return min(_MOST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(num_quick_deaths, 16))


class Member:
    """A process that says "Baton is ready at URL" once it serves.

    Args:
        environment: of the process, whole.
        max_restarts: in ten minutes.

    Attributes:
        ready: set while it serves.
        ended: set when it ended and is not started again: told to, out of restarts, or its first start failed.
        url: where it serves; "" before it first did.
        failure: why it ended though nobody told it to.
        exit_code: of the process that ended last.
        was_ready_s: seconds from the latest start until it served.
    """

    def __init__(self, plan: MemberPlan, log_dir: Path, environment: Mapping[str, str], max_restarts: int) -> None:
        self.plan = plan
        self.log_file = log_dir / f"{plan.name}.log"
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.url = ""
        self.failure = ""
        self.exit_code = 0
        self.was_ready_s = 0.0
        self._environment = {**environment, **plan.environment}
        self._port = plan.port
        self._budget = RestartBudget(max_restarts)
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs; None when there is none."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def start(self) -> None:
        """Begin; `ready` or `ended` is set when it has come so far."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self, timeout_s: float) -> None:
        """End it and do not start it again: SIGTERM, and SIGKILL when it takes longer than that."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)
        self.kill()
        if self._task is not None:
            await self._task

    def kill(self) -> None:
        """End it at once, and do not start it again. Its own children end by its death."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def last_words(self) -> str:
        """The last line of its log that says something."""
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        said = [line.strip(" │╭╮╰╯─") for line in lines]  # usage errors come in a frame
        return next((line for line in reversed(said) if line), "it said nothing")

    async def _keep(self) -> None:
        num_quick_deaths = 0
        try:
            while not self._stopping.is_set():
                lived_s = await self._live()
                if self._stopping.is_set():
                    return
                end = describe_exit(self.exit_code)
                if not self.url:
                    self.failure = end
                    return
                if not self._budget.take(time.monotonic()):
                    self.failure = f"it ended too often; the last time: {end}"
                    _log.error("%s ended (%s), too often: it stays down; see %s", self.plan.name, end, self.log_file)
                    return
                num_quick_deaths = 0 if lived_s >= _STEADY_S else num_quick_deaths + 1
                await self._pause(delay_s(num_quick_deaths), end)
        finally:
            self.ended.set()

    async def _pause(self, seconds: float, end: str) -> None:
        _log.warning("%s ended (%s); starting it again in %.1f s", self.plan.name, end, seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _live(self) -> float:
        """From a start to the end of that process; returns for how many seconds it served."""
        started_s = time.monotonic()
        with self.log_file.open("ab", buffering=0) as log:
            process = await self._spawn(log)
            reading = asyncio.create_task(self._read(process, log, started_s))
            if self._stopping.is_set():  # told while it was being made
                process.terminate()
            self.exit_code = await process.wait()
            await asyncio.wait({reading}, timeout=_LAST_WORD_S)
            reading.cancel()
        lived_s = time.monotonic() - started_s - self.was_ready_s if self.ready.is_set() else 0.0
        self.ready.clear()
        return lived_s

    async def _spawn(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            *self.plan.command,
            "--port",
            str(self._port),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=self._environment,
            process_group=0,  # Ctrl-C comes to the whole group of a terminal; who ends when is decided here
            preexec_fn=_Leash(os.getpid()),
        )
        return self._process

    async def _read(self, process: asyncio.subprocess.Process, log: IO[bytes], started_s: float) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            log.write(line)
            text = line.decode(errors="replace").strip()
            if text.startswith(_READY):
                if self.url:
                    _log.info("%s is back", self.plan.name)
                self.url = text.removeprefix(_READY)
                self._port = urlsplit(self.url).port or self._port
                self.was_ready_s = time.monotonic() - started_s
                self.ready.set()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class _Leash:
    """Runs in a new process before its program: the kernel is to kill it when its parent ends, however that happens.

    Unlike a flag that each program would have to know, this survives exec (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:
            os._exit(1)
