"""A buffer that an agent may reach, waiting for what an agent reports, and a NixlAgent in a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.transfer.agent import Agent, Ended, Moves, Notice, Post
from baton.transfer.nixl_agent import NixlAgent

PATIENCE_S = 30.0
LIFE_S = 120.0
"""After which a peer's process ends by itself."""


class Buffer:
    """Host memory of `size` bytes, at `address`."""

    def __init__(self, size: int, fill: int = 0) -> None:
        self.bytes: NDArray[np.uint8] = np.full(size, fill, np.uint8)
        self.address = self.bytes.ctypes.data

    def fill(self, value: int) -> None:
        """Every byte."""
        self.bytes[:] = value

    def look(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop)."""
        return self.bytes[start:stop].tobytes()


def moves(*rows: tuple[int, int, int]) -> Moves:
    """(source, destination, length) each."""
    return np.array(rows, np.int64)


class Watch:
    """What an agent has reported, collected by polling."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.ended: list[Ended] = []
        self.notices: list[Notice] = []

    def poll(self) -> None:
        ended, notices = self.agent.poll()
        self.ended += ended
        self.notices += notices

    def until(self, reached: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
        """Poll until it holds."""
        deadline = time.monotonic() + patience_s
        while not reached():
            assert time.monotonic() < deadline, f"waited {patience_s} s; ended {self.ended}, notices {self.notices}"
            self.poll()
            time.sleep(0.0005)

    def end_of(self, post: Post, patience_s: float = PATIENCE_S) -> Ended:
        """The one end of a post."""
        self.until(lambda: any(ended.post == post for ended in self.ended), patience_s)
        (ended,) = [ended for ended in self.ended if ended.post == post]
        return ended

    def stall(self, post: Callable[[], Post]) -> list[Post]:
        """Post to a stopped peer until one stays in flight: over shared memory the first may be done without it."""
        posts = []
        for _ in range(64):
            posts.append(post())
            for _ in range(50):
                self.poll()
            if posts[-1] not in {ended.post for ended in self.ended}:
                return posts
        raise AssertionError("a stopped peer completes every transfer")


class PeerProcess:
    """Another process with a NixlAgent over one buffer, which polls until it is told otherwise.

    Attributes:
        metadata, address: of its agent and its buffer.
    """

    def __init__(self, name: str, size: int, fill: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs, name, size, fill), daemon=True)
        self._process.start()
        theirs.close()
        self.reports: list[tuple[Any, ...]] = []
        _, self.metadata, self.address = self.next("ready")
        self.pid = self._process.pid

    def ask(self, command: str, *args: Any) -> Any:
        """A method of the agent or of the buffer, by name: its answer."""
        self._pipe.send((command, *args))
        return self.next("answer")[1]

    def next(self, kind: str) -> tuple[Any, ...]:
        """The oldest report of a kind: ended(post, error), notice(peer, payload, sum of the buffer when it came)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for report in self.reports:
                if report[0] == kind:
                    self.reports.remove(report)
                    return report
            assert self._pipe.poll(max(0.0, deadline - time.monotonic())), f"no {kind} in {PATIENCE_S} s"
            self.reports.append(self._pipe.recv())

    def has_ended(self) -> bool:
        """Whether there is a report of an end; does not wait."""
        while self._pipe.poll():
            self.reports.append(self._pipe.recv())
        return any(report[0] == "ended" for report in self.reports)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        self._pipe.close()


def _live(pipe: Connection, name: str, size: int, fill: int) -> None:
    agent, buffer = NixlAgent(name), Buffer(size, fill)
    agent.register(buffer.address, size, None)
    pipe.send(("ready", agent.metadata(), buffer.address))
    deadline = time.monotonic() + LIFE_S
    while time.monotonic() < deadline:
        ended, notices = agent.poll()
        for end in ended:
            pipe.send(("ended", end.post, end.error))
        for notice in notices:
            pipe.send(("notice", notice.peer, notice.payload, int(buffer.bytes.sum())))
        try:
            if pipe.poll(0.0005):
                command, *args = pipe.recv()
                call = getattr(buffer if command in ("look", "fill") else agent, command)
                pipe.send(("answer", call(*args)))
        except EOFError:
            return
