"""Agents of one process that move bytes between real addresses, when and as a test says.

Every post and every notice is a pending item of the `MemoryNetwork`. Nothing happens to it until the network is told:
delivered, in any order, in part, twice, with a failure, or never. Without a schedule (`autodeliver`) everything
happens at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baton.transfer.agent import AgentError, Direction, Ended, Moves, Notice, Post
from baton.transfer.regions import AgentCard, Region, Regions, pack_card, unpack_card

KIND = "memory"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingPost:
    """A posted transfer that has not ended, and may still move each of its moves (again).

    Attributes:
        agent: who posted it; peer: at whose memory.
        moves: as they were posted.
    """

    agent: str
    peer: str
    post: Post
    direction: Direction
    moves: Moves
    notice: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingNotice:
    """A message on its way from one agent to another."""

    agent: str
    peer: str
    payload: bytes


Pending = PendingPost | PendingNotice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Touch:
    """Memory of `agent` that a pending post may still read or write.

    Attributes:
        ranges: [N, 2]: address, length in bytes.
        writes: whether it writes there.
    """

    agent: str
    post: PendingPost
    ranges: NDArray[np.int64]
    writes: bool

    def overlaps(self, address: int, num_bytes: int) -> bool:
        """Whether bytes [address, address + num_bytes) are among them."""
        starts, lengths = self.ranges[:, 0], self.ranges[:, 1]
        return bool(((starts < address + num_bytes) & (address < starts + lengths)).any())


@dataclass(slots=True)
class _End:
    """What one agent has, and what waits for its `poll`."""

    regions: Regions = field(default_factory=Regions)
    ended: list[Ended] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class MemoryNetwork:
    """Connects `MemoryAgent`s, and holds what is under way between them.

    Args:
        autodeliver: deliver everything the moment it is sent.
    """

    def __init__(self, *, autodeliver: bool = False) -> None:
        self._autodeliver = autodeliver
        self._names: set[str] = set()
        self._ends: dict[str, _End] = {}
        self._pending: list[Pending] = []
        self._orphans: list[PendingPost] = []

    def pending(self) -> tuple[Pending, ...]:
        """Everything under way, oldest first; no posts of dead agents."""
        return tuple(self._pending)

    def orphans(self) -> tuple[PendingPost, ...]:
        """Posts of dead agents, which may still land."""
        return tuple(self._orphans)

    def touches(self) -> list[Touch]:
        """Memory that pending and orphaned posts may still read or write, on both sides; nothing of dead agents."""
        touches = []
        for item in [*self._pending, *self._orphans]:
            if isinstance(item, PendingNotice):
                continue
            source, destination = _source_and_destination(item)
            for agent, column, writes in ((source, 0, False), (destination, 1, True)):
                if agent in self._ends:
                    ranges = item.moves[:, [column, 2]]
                    touches.append(Touch(agent=agent, post=item, ranges=ranges, writes=writes))
        return touches

    def deliver(self, item: Pending) -> None:
        """Finish it: all bytes of a post are there, it ends, and its notice (if any) is under way; a notice arrives.

        What goes to a dead agent fails: a post ends with an error, a notice is gone.
        """
        if isinstance(item, PendingPost) and item.peer not in self._ends:
            self.fail(item, f"{item.peer} is dead")
            return
        self._take(item)
        if isinstance(item, PendingNotice):
            self._arrive(item)
            return
        self._land(item, item.moves)
        self._ends[item.agent].ended.append(Ended(post=item.post))
        if item.notice:
            self.send(PendingNotice(agent=item.agent, peer=item.peer, payload=item.notice))

    def deliver_part(self, item: PendingPost, rows: Sequence[int]) -> None:
        """Do some of its moves; it stays under way (or orphaned) and may still touch all of them."""
        if item not in self._pending and item not in self._orphans:
            raise ValueError(f"{item} is not under way")
        self._land(item, item.moves[list(rows)])

    def duplicate(self, item: PendingNotice) -> None:
        """Deliver a notice and leave it under way."""
        self._require(item)
        self._arrive(item)

    def drop(self, item: PendingNotice) -> None:
        """Lose a notice."""
        self._take(item)

    def fail(self, item: PendingPost, error: str) -> None:
        """End a post with an error; of its moves those of earlier `deliver_part`s are done. Its notice is not sent."""
        self._take(item)
        self._ends[item.agent].ended.append(Ended(post=item.post, error=error))

    def die(self, name: str) -> None:
        """An agent's process ends: it sees and sends nothing more, and its memory is gone.

        Its posts are orphans, which may still land; what is under way to it stays pending, and fails when delivered.
        Notices that it has sent are still under way.
        """
        del self._ends[name]
        mine = [item for item in self._pending if isinstance(item, PendingPost) and item.agent == name]
        self._orphans += mine
        self._pending = [item for item in self._pending if item not in mine]

    def land_late(self, item: PendingPost) -> None:
        """A post of a dead agent lands, whole, and is gone. No notice: that was software's to send."""
        self._orphans.remove(item)
        self._land(item, item.moves)

    def vanish(self, item: PendingPost) -> None:
        """A post of a dead agent will not land any more."""
        self._orphans.remove(item)

    def join(self, name: str) -> _End:
        """For `MemoryAgent`: take part under a name that nobody has had."""
        if name in self._names:
            raise AgentError(f"there was an agent named {name} in this network: take another name")
        self._names.add(name)
        return self._ends.setdefault(name, _End())

    def is_alive(self, name: str) -> bool:
        """Whether an agent of this name takes part."""
        return name in self._ends

    def send(self, item: Pending) -> None:
        """For `MemoryAgent`: something is under way."""
        self._pending.append(item)
        if self._autodeliver:
            self.deliver(item)

    def _land(self, item: PendingPost, moves: Moves) -> None:
        """Copy, unless what is to be written, or what is to be read over the network, is a dead agent's."""
        destination = _source_and_destination(item)[1]
        if item.peer in self._ends and destination in self._ends:
            for source, target, num_bytes in moves.tolist():
                ctypes.memmove(target, source, num_bytes)

    def _arrive(self, item: PendingNotice) -> None:
        if item.peer in self._ends:
            self._ends[item.peer].notices.append(Notice(peer=item.agent, payload=item.payload))

    def _require(self, item: Pending) -> None:
        if item not in self._pending:
            raise ValueError(f"{item} is not under way")

    def _take(self, item: Pending) -> None:
        self._require(item)
        self._pending.remove(item)


class MemoryAgent:
    """`baton.transfer.agent.Agent` in a `MemoryNetwork`. GPU memory is refused: it has no addresses here.

    Registered memory must outlive the network, also that of a dead agent.

    Args:
        name: that no agent of the network has had.

    Raises:
        AgentError: one has had it.
    """

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self._network = network
        self._end = network.join(name)
        self._cards: dict[str, AgentCard] = {}
        self._peers: dict[str, Regions] = {}
        self._num_posts = 0

    def register(self, address: int, num_bytes: int, device: int | None) -> None:
        """See `Agent`."""
        self._alive()
        if device is not None:
            raise AgentError(f"a MemoryAgent moves host memory only, not that of GPU {device}")
        self._end.regions.add(Region(address=address, num_bytes=num_bytes, device=None))

    def metadata(self) -> bytes:
        """See `Agent`."""
        return pack_card(AgentCard(kind=KIND, name=self.name, regions=tuple(self._end.regions)))

    def connect(self, metadata: bytes) -> str:
        """See `Agent`.

        Raises:
            AgentError: metadata of something else, or another agent of this name is connected.
        """
        self._alive()
        card = unpack_card(metadata, KIND)
        if self._cards.setdefault(card.name, card) != card:
            raise AgentError(f"another agent named {card.name} is connected: disconnect it first")
        self._peers[card.name] = Regions(card.regions)
        return card.name

    def post(self, direction: Direction, peer: str, moves: Moves, notice: bytes | None = None) -> Post:
        """See `Agent`. An empty notice is none."""
        regions = self._reachable(peer)
        local, remote = (0, 1) if direction is Direction.WRITE else (1, 0)
        self._end.regions.device_of(moves[:, local], moves[:, 2])
        regions.device_of(moves[:, remote], moves[:, 2])
        self._num_posts += 1
        post = Post(self._num_posts)
        item = PendingPost(
            agent=self.name, peer=peer, post=post, direction=direction, moves=moves.copy(), notice=notice
        )
        self._network.send(item)
        return post

    def notify(self, peer: str, payload: bytes) -> None:
        """See `Agent`."""
        self._reachable(peer)
        self._network.send(PendingNotice(agent=self.name, peer=peer, payload=payload))

    def poll(self) -> tuple[list[Ended], list[Notice]]:
        """See `Agent`."""
        self._alive()
        ended, self._end.ended = self._end.ended, []
        notices, self._end.notices = self._end.notices, []
        return ended, notices

    def disconnect(self, peer: str) -> None:
        """See `Agent`. Posts under way end as the network is told: with success if it still comes to that."""
        self._cards.pop(peer, None)
        self._peers.pop(peer, None)

    def close(self) -> None:
        """See `Agent`. To the network this is the agent's death."""
        if self._network.is_alive(self.name):
            self._network.die(self.name)

    def _reachable(self, peer: str) -> Regions:
        self._alive()
        if peer not in self._peers:
            raise AgentError(f"{peer} is not connected")
        return self._peers[peer]

    def _alive(self) -> None:
        if not self._network.is_alive(self.name):
            raise AgentError(f"{self.name} is closed or dead")


def _source_and_destination(item: PendingPost) -> tuple[str, str]:
    """Names of the agents whose memory is read and written."""
    return (item.agent, item.peer) if item.direction is Direction.WRITE else (item.peer, item.agent)
