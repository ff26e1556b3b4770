"""Processes of others: signals that cannot meet a wrong one, and an end to their TCP connections (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

_PIDFD_GETFD = 438  # the same on every architecture
_UNSPEC_ADDRESS = bytes(16)  # sa_family AF_UNSPEC
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process:
    """A process that is this one, also when its number is used again. A context."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._pidfd)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; returns whether it was still there."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def reset(self, chosen: Callable[[set[int]], bool]) -> int:
        """Reset its TCP connections: the peer gets RST, the process an error at its next use. Returns how many.

        The socket is borrowed (pidfd_getfd; the caller is an ancestor of the process, or may trace it) and connected to
        nothing, which ends what it had.

        Args:
            chosen: by the ports of its two ends.
        """
        count = 0
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{self.pid}/fd/{name}").startswith("socket:"):
                    count += self._reset(int(name), chosen)
        return count

    def _reset(self, number: int, chosen: Callable[[set[int]], bool]) -> bool:
        copy = _LIBC.syscall(_PIDFD_GETFD, self._pidfd, number, 0)
        if copy < 0:
            return False
        with closing(socket.socket(fileno=copy)) as borrowed:
            if borrowed.family != socket.AF_INET or borrowed.type != socket.SOCK_STREAM:
                return False
            if not chosen({borrowed.getsockname()[1], borrowed.getpeername()[1]}):
                return False
            return bool(_LIBC.connect(copy, _UNSPEC_ADDRESS, len(_UNSPEC_ADDRESS)) == 0)


def command_of(pid: int) -> list[str]:
    """Its arguments; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
