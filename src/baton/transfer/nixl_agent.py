"""An agent over NIXL, which moves bytes by RDMA, CUDA IPC, shared memory or TCP, whatever its back end finds.

NIXL's own progress thread is off: it keeps a core busy on each side, and `poll` makes the same progress.

What NIXL 1.5.1 does, and the code relies on (seen between two processes, over shared memory and TCP):
- Asking for the state of a transfer to a killed peer raises within 50 ms of the kill; posting to it raises at once.
  A stopped (SIGSTOP) peer's transfers just stay in progress.
- The same when a TCP connection to a peer that lives on is reset, at either end; every later post fails too, until the
  peer is removed and added again, here alone.
- Releasing a transfer in progress succeeds without stopping it, and its state cannot be asked for once the peer is
  invalidated. So handles are kept, and peers not invalidated, until the state is final.
- Loading damaged metadata can make the peer's name unusable for good. So metadata carry a digest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import ConfigError
from baton.transfer.agent import AgentError, Direction, Ended, Moves, Notice, Post
from baton.transfer.regions import AgentCard, Region, Regions, pack_card, unpack_card

KIND = "nixl"


@dataclass(slots=True)
class _Peer:
    """An agent that was connected.

    Attributes:
        broken: an operation failed; the next one connects anew.
        leaving: disconnected, with transfers still in flight.
    """

    card: AgentCard
    regions: Regions
    num_flights: int = 0
    broken: bool = False
    leaving: bool = False


@dataclass(slots=True)
class _Flight:
    """A posted transfer. over: its state is final; error: what that state is, None for success."""

    peer: _Peer
    handle: Any
    over: bool = False
    error: str | None = None


class NixlAgent:
    """`baton.transfer.agent.Agent` over NIXL.

    For GPU memory the thread that calls it must have that GPU's context current (`torch.cuda.set_device`).

    Args:
        name: unique among all agents that ever meet, also across restarts.
        backends: of NIXL, by name; each must be in the installed package.
        gpu: memory of a GPU is to be registered.

    Raises:
        ConfigError: NIXL is not installed, or has no such back end.
    """

    def __init__(self, name: str, backends: Sequence[str] = ("UCX",), *, gpu: bool = False) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # at INFO, its default, it writes to standard output
        if gpu:
            # Without it UCX emulates READ where it sees no NVLink, also between two processes on one GPU: 0.5 GB/s
            # there instead of 300 (benchmarks/results/gpu_handoff_probe.json).
            os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            raise ConfigError(f"hand-offs over NIXL need its package: pip install 'baton[nixl]' ({error})") from error
        try:
            self._nixl: Any = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=list(backends)))
        except Exception as error:
            raise ConfigError(f"NIXL cannot start its back ends {', '.join(backends)}: {_say(error)}") from error
        missing = [backend for backend in backends if backend not in self._nixl.backends]
        if missing:
            raise ConfigError(f"this NIXL has no back end {missing[0]}; it has {', '.join(self._nixl.plugin_list)}")
        self.name = name
        self._regions = Regions()
        self._registered: list[Any] = []
        self._peers: dict[str, _Peer] = {}
        self._flights: dict[Post, _Flight] = {}
        self._unreleased: list[Any] = []
        self._num_posts = 0

    def register(self, address: int, num_bytes: int, device: int | None) -> None:
        """See `Agent`."""
        self._regions.add(Region(address=address, num_bytes=num_bytes, device=device))
        rows = _rows(np.array([address]), np.array([num_bytes]), device)
        try:
            self._registered.append(self._nixl.register_memory(rows, _memory(device)))
        except Exception as error:
            raise AgentError(f"NIXL cannot register {num_bytes} bytes on {device=}: {_say(error)}") from error

    def metadata(self) -> bytes:
        """See `Agent`."""
        backend = self._nixl.get_agent_metadata()
        return pack_card(AgentCard(kind=KIND, name=self.name, regions=tuple(self._regions), backend=backend))

    def connect(self, metadata: bytes) -> str:
        """See `Agent`.

        Raises:
            AgentError: metadata of something else, or another agent has this name.
        """
        card = unpack_card(metadata, KIND)
        peer = self._peers.get(card.name)
        if peer is None:
            self._load(card)
            self._peers[card.name] = _Peer(card, Regions(card.regions))
        elif peer.card != card:
            raise AgentError(f"another agent named {card.name} is connected: disconnect it first")
        else:
            peer.leaving = False
        return card.name

    def post(self, direction: Direction, peer: str, moves: Moves, notice: bytes | None = None) -> Post:
        """See `Agent`. A failure after the back end has begun is no AgentError: the post ends with it.

        After a failure the peer is connected anew, once nothing posted to it is in flight. An empty notice is none.
        """
        target = self._reachable(peer)
        local, remote = (0, 1) if direction is Direction.WRITE else (1, 0)
        lengths = moves[:, 2]
        local_device = self._regions.device_of(moves[:, local], lengths)
        remote_device = target.regions.device_of(moves[:, remote], lengths)
        try:
            handle = self._nixl.initialize_xfer(
                direction.name,
                self._nixl.get_xfer_descs(_rows(moves[:, local], lengths, local_device), _memory(local_device)),
                self._nixl.get_xfer_descs(_rows(moves[:, remote], lengths, remote_device), _memory(remote_device)),
                peer,
                notice or b"",
            )
        except Exception as error:
            target.broken = True
            raise AgentError(f"NIXL refuses a transfer with {peer}: {_say(error)}") from error
        self._num_posts += 1
        post = Post(self._num_posts)
        flight = self._flights[post] = _Flight(target, handle)
        target.num_flights += 1
        self._ask(flight, self._nixl.transfer)
        return post

    def notify(self, peer: str, payload: bytes) -> None:
        """See `Agent`."""
        target = self._reachable(peer)
        try:
            self._nixl.send_notif(peer, payload)
        except Exception as error:
            target.broken = True
            raise AgentError(f"NIXL cannot send to {peer}: {_say(error)}") from error

    def poll(self) -> tuple[list[Ended], list[Notice]]:
        """See `Agent`."""
        self._unreleased = [handle for handle in self._unreleased if not self._release(handle)]
        ended = [Ended(post=post, error=f.error) for post, f in list(self._flights.items()) if self._landed(post, f)]
        notices = [
            Notice(peer=peer, payload=payload)
            for peer, payloads in self._nixl.get_new_notifs().items()
            for payload in payloads
        ]
        return ended, notices

    def disconnect(self, peer: str) -> None:
        """See `Agent`. Transfers in flight end as the back end says: with success if it still comes to that."""
        known = self._peers.get(peer)
        if known is None:
            return
        known.leaving = True
        if not known.num_flights:
            self._forget(known)

    def close(self) -> None:
        """See `Agent`. With transfers in flight nothing is given back: only the end of the process stops them."""
        if self._flights:
            return
        for peer in list(self._peers.values()):
            self._forget(peer)
        for registered in self._registered:
            with contextlib.suppress(Exception):
                self._nixl.deregister_memory(registered)
        self._registered.clear()
        self._regions = Regions()

    def _load(self, card: AgentCard) -> None:
        try:
            self._nixl.add_remote_agent(card.backend)
        except Exception as error:
            raise AgentError(f"NIXL does not take the metadata of {card.name}: {_say(error)}") from error

    def _reachable(self, name: str) -> _Peer:
        peer = self._peers.get(name)
        if peer is None or peer.leaving:
            raise AgentError(f"{name} is not connected")
        if peer.broken:
            self._mend(peer)
        return peer

    def _mend(self, peer: _Peer) -> None:
        """Connect anew: NIXL takes nothing more for a peer whose connection broke, though it may live on."""
        if peer.num_flights:
            raise AgentError(f"the connection to {peer.card.name} broke, and its transfers have not ended yet")
        self._unload(peer.card)
        self._load(peer.card)
        peer.broken = False

    def _ask(self, flight: _Flight, question: Any) -> None:
        """Post, or ask for the state; note a final answer."""
        try:
            state = question(flight.handle)
        except Exception as error:
            flight.over, flight.error = True, _say(error)
        else:
            flight.over = state != "PROC"
            flight.error = "the back end reports an error" if state == "ERR" else None
        flight.peer.broken |= flight.error is not None

    def _landed(self, post: Post, flight: _Flight) -> bool:
        """Whether the transfer is over and its memory free; if so it is forgotten."""
        if not flight.over:
            self._ask(flight, self._nixl.check_xfer_state)
        if not flight.over:
            return False
        if not self._release(flight.handle):
            if flight.error is not None:
                return False  # a failed transfer that cannot be released may have parts in flight
            self._unreleased.append(flight.handle)
        del self._flights[post]
        flight.peer.num_flights -= 1
        if flight.peer.leaving and not flight.peer.num_flights:
            self._forget(flight.peer)
        return True

    def _release(self, handle: Any) -> bool:
        try:
            self._nixl.release_xfer_handle(handle)
        except Exception:
            return False
        return True

    def _forget(self, peer: _Peer) -> None:
        del self._peers[peer.card.name]
        self._unload(peer.card)

    def _unload(self, card: AgentCard) -> None:
        with contextlib.suppress(Exception):
            self._nixl.remove_remote_agent(card.name)


def _rows(addresses: NDArray[np.int64], lengths: NDArray[np.int64], device: int | None) -> NDArray[np.uint64]:
    """NIXL's descriptors, [N, 3]: address, length, device number (0 for the host)."""
    rows = np.empty((len(addresses), 3), np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 2] = addresses, lengths, device or 0
    return rows


def _memory(device: int | None) -> str:
    return "DRAM" if device is None else "VRAM"


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
