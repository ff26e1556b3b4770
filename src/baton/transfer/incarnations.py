"""The incarnations of peers whose memory this engine can reach: connected, warmed up, and forgotten in the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from baton.core.geometry import RankGeometry
from baton.obs.log import get_logger
from baton.transfer.agent import Agent, AgentError, Direction, Ended, Post
from baton.transfer.link import Link
from baton.wire.handoff import Card
from baton.wire.seal import Notices, Seal

_log = get_logger(__name__)
_WARM_BYTES = 64


@dataclass(slots=True, eq=False)
class Incarnation:
    """A peer that was met.

    Attributes:
        from_it, to_it: notices of its agents, and for them.
        idle_since_s: when its last link ended, or when it was met.
        confirmed_s: when the latest Alive was sent that it is known to have received.
        warm: warm-up was posted.
        gave, took: it was linked as a giver, as a taker.
    """

    link: Link
    from_it: Notices
    to_it: Notices
    idle_since_s: float
    confirmed_s: float = -math.inf
    warm: bool = False
    gave: bool = False
    took: bool = False


class Incarnations:
    """See the module. Owns the posts of warm-ups.

    Args:
        agent: of this rank.
        card: of this engine.
        rank: of this worker.
        root: the shared secret.
    """

    def __init__(self, agent: Agent, card: Card, rank: int, root: Seal) -> None:
        self._agent = agent
        self._me = card.engine_id
        self._geometry = card.ranks[rank].geometry
        self._root = root
        self._known: dict[str, Incarnation] = {}
        self._by_agent: dict[str, Incarnation] = {}
        self._posts: set[Post] = set()

    def get(self, engine_id: str) -> Incarnation | None:
        """A known one."""
        return self._known.get(engine_id)

    def of_agent(self, name: str) -> Incarnation | None:
        """The one that an agent belongs to."""
        return self._by_agent.get(name)

    def meet(self, card: Card, now: float) -> Incarnation:
        """Connect to each of its ranks. Nothing but the card changes for an incarnation that is known.

        Raises:
            AgentError: a rank cannot be reached; nothing has changed.
        """
        known = self._known.get(card.engine_id)
        agents = self._connect(card, known)
        link = Link(card=card, agents=agents)
        if known is None:
            from_it = Notices(self._root, giver_id=card.engine_id, taker_id=self._me)
            to_it = Notices(self._root, giver_id=self._me, taker_id=card.engine_id)
            known = self._known[card.engine_id] = Incarnation(link, from_it, to_it, now)
        known.link = link
        self._by_agent |= dict.fromkeys(agents, known)
        return known

    def _connect(self, card: Card, known: Incarnation | None) -> tuple[str, ...]:
        agents: list[str] = []
        try:
            for rank in card.ranks:
                agents.append(self._agent.connect(rank.agent))
                if self._by_agent.get(agents[-1], known) is not known:
                    raise AgentError(f"agent {agents[-1]} is another engine's")
        except AgentError:
            self._disconnect(name for name in agents if name not in self._by_agent)
            raise
        return tuple(agents)

    def others_at(self, card: Card) -> list[Incarnation]:
        """Other incarnations that said they are reached where this one says it is: it has taken their place."""
        return [
            other
            for other in self._known.values()
            if other.link.engine_id != card.engine_id
            and (other.link.card.host, other.link.card.port) == (card.host, card.port)
        ]

    def warm_up(self, one: Incarnation) -> None:
        """Post a small WRITE and READ to each rank: the first post on a cold connection was seen to take seconds."""
        if one.warm:
            return
        one.warm = True
        for rank, name in zip(one.link.card.ranks, one.link.agents, strict=True):
            here, there = _spare_address(self._geometry), _spare_address(rank.geometry)
            num_bytes = min(_WARM_BYTES, self._geometry.block_bytes, rank.geometry.block_bytes)
            try:
                for direction, ends in ((Direction.WRITE, (here, there)), (Direction.READ, (there, here))):
                    moves = np.array([[*ends, num_bytes]], dtype=np.int64)
                    self._posts.add(self._agent.post(direction, name, moves))
            except AgentError as error:
                _log.warning("warm-up of %s failed: %s", name, error)

    def ended(self, ended: Ended) -> bool:
        """Whether this was the end of a warm-up's post."""
        if ended.post not in self._posts:
            return False
        self._posts.discard(ended.post)
        if ended.error is not None:
            _log.warning("warm-up failed: %s", ended.error)
        return True

    def forget(self, one: Incarnation) -> None:
        """Disconnect from all its ranks."""
        if self._known.pop(one.link.engine_id, None) is None:
            return
        names = [name for name, owner in self._by_agent.items() if owner is one]
        for name in names:
            del self._by_agent[name]
        self._disconnect(names)

    def idle(self, before_s: float, linked: set[str]) -> list[Incarnation]:
        """Those without a link since before that time."""
        return [one for name, one in self._known.items() if name not in linked and one.idle_since_s < before_s]

    def _disconnect(self, names: Iterable[str]) -> None:
        for name in names:
            self._agent.disconnect(name)


def _spare_address(geometry: RankGeometry) -> int:
    """Of the block behind the last one: registered on every engine, and nobody's."""
    return geometry.base_address + geometry.num_blocks * geometry.block_bytes
