"""What moves bytes between two processes' memory: one small interface, `NixlAgent` and `MemoryAgent` behind it.

An agent belongs to one thread. Nothing in it waits; `poll` drives progress on both sides of a transfer, so a target
must poll too. A posted transfer cannot be cancelled: its memory stays pinned until `poll` reports its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

import numpy as np
from numpy.typing import NDArray

Moves = NDArray[np.int64]
"""[N, 3]: source address, destination address, length in bytes; for WRITE the source is local, for READ remote."""
Post = NewType("Post", int)
"""Names a posted transfer; never reused by an agent."""


class Direction(Enum):
    """WRITE: local to remote; READ: remote to local."""

    WRITE = "write"
    READ = "read"


class AgentError(Exception):
    """The back end refused an operation. What was posted before is not affected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A posted transfer is over: its memory is free of it.

    Attributes:
        error: None when every byte arrived and is visible at the destination; else what the back end said.
    """

    post: Post
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message of a peer's agent. peer: its name, as `connect` returned it."""

    peer: str
    payload: bytes


class Agent(Protocol):
    """One rank's end. All methods are called by one thread."""

    def register(self, address: int, num_bytes: int, device: int | None) -> None:
        """Make memory usable for transfers, local and remote. device: GPU number; None: host memory.

        Raises:
            AgentError: the memory cannot be registered.
        """

    def metadata(self) -> bytes:
        """What a peer's `connect` needs; to be taken after `register`."""

    def connect(self, metadata: bytes) -> str:
        """Make a peer reachable; returns its name. The same peer again: its name again, no effect.

        Raises:
            AgentError: metadata of something else.
        """

    def post(self, direction: Direction, peer: str, moves: Moves, notice: bytes | None = None) -> Post:
        """Start moving bytes. N >= 1 moves.

        A connection that broke fails what was posted over it; once that has ended, the next post makes a new one.

        Args:
            notice: delivered to the peer's `poll` after all bytes are visible there (WRITE), or were read (READ).

        Raises:
            AgentError: nothing was started.
        """

    def notify(self, peer: str, payload: bytes) -> None:
        """Send a message that belongs to no transfer.

        Raises:
            AgentError: it was not sent.
        """

    def poll(self) -> tuple[list[Ended], list[Notice]]:
        """Drive progress; what ended and what arrived since the last call. An Ended comes exactly once."""

    def disconnect(self, peer: str) -> None:
        """Forget a peer; posts to it still end, as they may. Unknown names are ignored."""

    def close(self) -> None:
        """Release everything. Posts that have not ended may still touch memory: end the process soon."""
