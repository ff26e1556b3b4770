"""Servers of others as processes: started in a group of their own, waited for, always ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Self

import httpx

_END_S = 20.0
_TAIL_BYTES = 3000


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class PeerServer:
    """A command that serves HTTP at a port. A context: its whole process group is gone afterwards."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self.process = subprocess.Popen(
            list(command),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def ready(self, timeout_s: float, path: str = "/health") -> Self:
        """Wait until a GET of `path` answers 200."""
        deadline = time.monotonic() + timeout_s
        while not self._answers(path):
            assert self.process.poll() is None, f"{self.process.args!r} has ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.process.args!r} was not ready:\n{self.tail()}"
            time.sleep(0.2)
        return self

    def tail(self) -> str:
        """The last lines it has written."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels; 0 where there is none of that name."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
