"""Puts a transfer worker together: agent, sockets, peers, and the sides and connector that role and mode ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.geometry import RankGeometry
from baton.core.handoff import Role, TransferMode
from baton.transfer.agent import Agent
from baton.transfer.flights import Flights
from baton.transfer.giver import GiveConnector, Giver, GiverConfig
from baton.transfer.peers import Peers
from baton.transfer.pull import Offerer, Puller
from baton.transfer.push import Pusher
from baton.transfer.rank import GiverRank, Reader
from baton.transfer.taker import Taker, TakerConfig
from baton.transfer.worker import TransferParts
from baton.wire.control import ControlSockets
from baton.wire.handoff import PROTOCOL_VERSION, Card, Done, FromGiver, FromTaker, Identity, RankCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """What an engine of one rank is to its peers.

    Attributes:
        facts: of its model, as in wire.handoff.Identity.
        bind_host, bind_port: of the control endpoint; port 0 takes a free one.
        advertised_host: how others reach it.
        geometry: of its pool, which has one more block behind the last: it belongs to nobody and is registered too.
        device: GPU number; None: host memory.
        read: bytes of the pool, for digests; None: no digests.
    """

    engine_id: str
    role: Role
    modes: tuple[TransferMode, ...]
    facts: dict[str, str]
    bind_host: str
    bind_port: int
    advertised_host: str
    secret: bytes | None
    geometry: RankGeometry
    device: int | None
    read: Reader | None
    giver: GiverConfig
    taker: TakerConfig


class _Control:
    """The control channel, for those who are made before the peers behind it."""

    peers: Peers

    def send(self, engine_id: str, message: FromGiver | FromTaker) -> None:
        self.peers.send(engine_id, message)

    def dial(self, host: str, port: int) -> None:
        self.peers.dial(host, port)

    def seal_notice(self, engine_id: str, done: Done) -> bytes:
        return self.peers.seal_notice(engine_id, done)

    def confirmed_s(self, engine_id: str) -> float:
        return self.peers.confirmed_s(engine_id)

    def fence(self, now: float) -> None:
        self.peers.fence(now)


def assemble(station: Station, agent: Agent, clock: Callable[[], float] = time.monotonic) -> tuple[TransferParts, Card]:
    """Everything a `TransferWorker` drives, and the card that peers see.

    Raises:
        ConfigError: the control endpoint's address cannot be had.
        AgentError: the pool cannot be registered.
    """
    geometry = station.geometry
    agent.register(geometry.base_address, (geometry.num_blocks + 1) * geometry.block_bytes, station.device)
    sockets = ControlSockets(station.bind_host, station.bind_port)
    control = _Control()
    given, taken = Flights(agent, clock, control.fence), Flights(agent, clock)
    giver = None if station.role is Role.DECODE else _giver(station, agent, given, control)
    taker = None if station.role is Role.PREFILL else _taker(station, taken, control)
    card = _card(station, sockets.port, agent.metadata())
    identity = Identity(protocol_version=PROTOCOL_VERSION, transfer_modes=station.modes, facts=station.facts)
    control.peers = Peers(
        identity,
        card,
        station.secret,
        agent,
        giver,
        taker,
        sockets,
        waiting=taker.alive_ids if taker is not None else lambda engine_id: (),
    )
    parts = TransferParts(
        agent=agent, sockets=sockets, peers=control.peers, flights=(given, taken), giver=giver, taker=taker
    )
    return parts, card


def _giver(station: Station, agent: Agent, flights: Flights, control: _Control) -> Giver:
    rank = GiverRank(station.giver.rank, [station.geometry], station.read)
    connectors: dict[TransferMode, GiveConnector] = {
        TransferMode.PUSH: Pusher(rank, agent, flights, control.seal_notice),
        TransferMode.PULL: Offerer(rank, control),
    }
    chosen = {mode: connectors[mode] for mode in station.modes}
    return Giver(station.giver, control, flights, chosen)


def _taker(station: Station, flights: Flights, control: _Control) -> Taker:
    connector = Puller(0, [station.geometry], flights, station.read)
    return Taker(station.taker, control, flights, connector, control.confirmed_s)


def _card(station: Station, port: int, metadata: bytes) -> Card:
    return Card(
        engine_id=station.engine_id,
        host=station.advertised_host,
        port=port,
        role=station.role,
        tp_size=1,
        pp_size=1,
        dp_size=1,
        ranks=(RankCard(agent=metadata, geometry=station.geometry, device=station.device),),
        lease_s=station.giver.lease_s,
    )
