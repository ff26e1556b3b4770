"""Engines of a world: real giver and taker machines over `MemoryAgent`s and pools of a few small blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.core.exchange import Event
from baton.core.handoff import Role, TransferMode
from baton.transfer.flights import Flights
from baton.transfer.giver import GiveConnector, Giver, GiverConfig
from baton.transfer.link import Control, Link
from baton.transfer.memory_agent import MemoryAgent, MemoryNetwork
from baton.transfer.pull import Offerer, Puller
from baton.transfer.push import Pusher
from baton.transfer.rank import GiverRank
from baton.transfer.taker import Taker, TakerConfig
from baton.wire.handoff import Card, Done, RankCard
from tests.transfer.pools import Memory, Pool, memory

LEASE_S, TIMEOUT_S, QUARANTINE_S, DEAD_S = 4.0, 6.0, 4.0, 2.0
PORT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Sizes and bounds of a run.

    Attributes:
        mode: of every transfer, or of every second one where they are `mixed`.
        giver_tokens, taker_tokens: of a block.
        num_tokens, num_cached: of each prompt; the latter are at the taker already.
        ranks: of the giver, one KV head each.
        attempts: the transfers are attempts of one request, one after the other.
        taker_first: of the two schedulers, which goes first if nothing else is chosen.
        faults: that may happen; at most max_faults of them.
        lag: schedulers hear of events when the schedule says so, not at once.
        heals: what was cut is linked again in the end, what was killed restarted.
    """

    mode: TransferMode = TransferMode.PUSH
    mixed: bool = False
    giver_tokens: int = 2
    taker_tokens: int = 2
    num_tokens: int = 3
    num_cached: int = 0
    transfers: int = 1
    ranks: int = 1
    attempts: bool = False
    taker_first: bool = False
    faults: tuple[str, ...] = ()
    max_faults: int = 2
    lag: bool = False
    heals: bool = True

    def mode_of(self, number: int) -> TransferMode:
        """Of the transfer with this number, from 0."""
        if not self.mixed or number % 2 == 0:
            return self.mode
        return TransferMode.PULL if self.mode is TransferMode.PUSH else TransferMode.PUSH

    @property
    def num_given(self) -> int:
        """Blocks of a prompt at the giver."""
        return -(-self.num_tokens // self.giver_tokens)

    @property
    def num_taken(self) -> int:
        """Blocks of what the taker lacks."""
        return -(-(self.num_tokens - self.num_cached) // self.taker_tokens)


@dataclass(eq=False, repr=False)
class Host:
    """An incarnation of an engine.

    Attributes:
        link: as its peer sees it.
        engines: a Giver for each rank, or one Taker.
        inbox: events that its scheduler has not heard of.
        pins: not settled: the transfer, its blocks, ranks that have not settled it.
    """

    side: str
    engine_id: str
    pool: Pool
    agents: list[MemoryAgent]
    link: Link
    engines: list[Any] = field(default_factory=list)
    inbox: deque[Event] = field(default_factory=deque)
    pins: dict[int, tuple[int, tuple[int, ...], set[int]]] = field(default_factory=dict)
    alive: bool = True

    def __repr__(self) -> str:
        return self.engine_id


def make_taker(
    taker_type: type[Taker],
    setup: Setup,
    network: MemoryNetwork,
    clock: Callable[[], float],
    control: Control,
    confirmed_s: Callable[[str], float],
) -> Host:
    """A decode engine of one rank."""
    num_blocks = max(1, setup.transfers * setup.num_taken)
    host = _host("taker", 0, network, num_blocks, setup.taker_tokens, [range(setup.ranks)])
    flights, geometries = Flights(host.agents[0], clock), [host.pool.ranks[0].geometry]
    config = TakerConfig(timeout_s=TIMEOUT_S, quarantine_s=QUARANTINE_S, dead_s=DEAD_S)
    host.engines.append(taker_type(config, control, flights, Puller(0, geometries, flights), confirmed_s))
    return host


def make_giver(
    types: tuple[type[Giver], type[Pusher]],
    setup: Setup,
    network: MemoryNetwork,
    clock: Callable[[], float],
    controls: list[Control],
    number: int,
    taker: Host,
) -> Host:
    """A prefill engine, its agents and the taker's connected. number: of the incarnation."""
    giver_type, pusher_type = types
    heads = [range(rank, rank + 1) for rank in range(setup.ranks)]
    host = _host("giver", number, network, setup.transfers * setup.num_given + 2, setup.giver_tokens, heads)
    geometries = [one.geometry for one in host.pool.ranks]
    for rank, (agent, control) in enumerate(zip(host.agents, controls, strict=True)):
        agent.connect(taker.link.card.ranks[0].agent)
        taker.agents[0].connect(host.link.card.ranks[rank].agent)
        flights, part = Flights(agent, clock), GiverRank(rank, geometries)
        connectors: dict[TransferMode, GiveConnector] = {
            TransferMode.PUSH: pusher_type(part, agent, flights, _seal),
            TransferMode.PULL: Offerer(part, control),
        }
        host.engines.append(giver_type(GiverConfig(rank=rank, lease_s=LEASE_S), control, flights, connectors))
    return host


def _seal(engine_id: str, done: Done) -> bytes:
    return msgspec.msgpack.encode(done)


def _host(
    side: str, number: int, network: MemoryNetwork, num_blocks: int, block_tokens: int, heads: list[range]
) -> Host:
    engine_id = f"{side}-{number}"
    memories = [memory(f"{engine_id}.{one.start}", num_blocks, block_tokens, one) for one in heads]
    agents = [MemoryAgent(network, f"{engine_id}.{rank}") for rank in range(len(heads))]
    for agent, one in zip(agents, memories, strict=True):
        agent.register(one.geometry.base_address, len(one.bytes), None)
    return Host(side, engine_id, Pool(memories), agents, _link(side, engine_id, agents, memories))


def _link(side: str, engine_id: str, agents: list[MemoryAgent], memories: list[Memory]) -> Link:
    ranks = [
        RankCard(agent=agent.metadata(), geometry=one.geometry) for agent, one in zip(agents, memories, strict=True)
    ]
    card = Card(
        engine_id=engine_id,
        host=side,
        port=PORT,
        role=Role.PREFILL if side == "giver" else Role.DECODE,
        tp_size=len(ranks),
        pp_size=1,
        dp_size=1,
        ranks=tuple(ranks),
        lease_s=LEASE_S,
    )
    return Link(card=card, agents=tuple(agent.name for agent in agents))
