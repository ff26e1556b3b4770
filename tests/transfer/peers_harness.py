"""Engines that only have links: real sockets and peers, an agent that moves nothing, and a clock that can jump."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from baton.core.geometry import RankGeometry
from baton.core.handoff import Role, TransferMode
from baton.transfer.agent import AgentError, Direction, Ended, Moves, Notice, Post
from baton.transfer.link import Link
from baton.transfer.peers import Peers
from baton.wire.control import ControlSockets
from baton.wire.handoff import PROTOCOL_VERSION, Card, FromGiver, FromTaker, Identity, RankCard

FACTS = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "num_layers": "28"}
GEOMETRY = RankGeometry(
    base_address=0x1000,
    num_blocks=8,
    block_tokens=16,
    first_head=0,
    num_heads=2,
    first_layer=0,
    num_layers=2,
    head_dim=8,
    dtype_bytes=2,
)
SECRET = b"correct horse"
IDENTITY = Identity(protocol_version=PROTOCOL_VERSION, transfer_modes=tuple(TransferMode), facts=FACTS)


class NullAgent:
    """Connects to anybody whose metadata begins with `agent `, and ends every post at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected: set[str] = set()
        self.posts: list[tuple[Direction, str, list[list[int]]]] = []
        self._ended: list[Ended] = []

    def register(self, address: int, num_bytes: int, device: int | None) -> None: ...

    def metadata(self) -> bytes:
        return f"agent {self.name}".encode()

    def connect(self, metadata: bytes) -> str:
        if not metadata.startswith(b"agent "):
            raise AgentError("that is no metadata of an agent")
        name = metadata.removeprefix(b"agent ").decode()
        self.connected.add(name)
        return name

    def post(self, direction: Direction, peer: str, moves: Moves, notice: bytes | None = None) -> Post:
        if peer not in self.connected:
            raise AgentError(f"{peer} is not connected")
        self.posts.append((direction, peer, moves.tolist()))
        self._ended.append(Ended(post=Post(len(self.posts))))
        return Post(len(self.posts))

    def notify(self, peer: str, payload: bytes) -> None: ...

    def poll(self) -> tuple[list[Ended], list[Notice]]:
        ended, self._ended = self._ended, []
        return ended, []

    def disconnect(self, peer: str) -> None:
        self.connected.discard(peer)

    def close(self) -> None: ...


@dataclass(slots=True)
class Recorder:
    """What giver and taker are told, in order: (name of the method, arguments)."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def taker_lost(self, engine_id: str, reason: str) -> None:
        self.told.append(("taker_lost", engine_id, reason))

    def from_taker(self, link: Link, message: FromTaker) -> None:
        self.told.append(("from_taker", link.engine_id, message))

    def linked(self, host: str, port: int, link: Link) -> None:
        self.told.append(("linked", host, port, link.engine_id))

    def unreachable(self, host: str, port: int, reason: str, *, refused: bool) -> None:
        self.told.append(("unreachable", host, port, reason, refused))

    def giver_lost(self, engine_id: str, reason: str, *, dead: bool) -> None:
        self.told.append(("giver_lost", engine_id, reason, dead))

    def from_giver(self, link: Link, message: FromGiver) -> None:
        self.told.append(("from_giver", link.engine_id, message))

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        return [told for told in self.told if told[0] in names]


def make_card(engine_id: str, role: Role, host: str, port: int, agent: bytes, **changes: Any) -> Card:
    card = Card(
        engine_id=engine_id,
        host=host,
        port=port,
        role=role,
        tp_size=1,
        pp_size=1,
        dp_size=1,
        ranks=(RankCard(agent=agent, geometry=GEOMETRY),),
        lease_s=30.0,
    )
    return msgspec.structs.replace(card, **changes)


class LinkEngine:
    """Sockets and peers of one engine, driven by `turn`.

    Attributes:
        skipped_s: added to its clock.
        sent: frames it sent, in order.
        drops: frames it is to lose instead, from now on.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised_port: int | None = None,
        secret: bytes | None = SECRET,
        identity: Identity = IDENTITY,
        silence_s: float = 5.0,
        **card: Any,
    ) -> None:
        self.name = name
        self.closed = False
        self.skipped_s = 0.0
        self.sent: list[bytes] = []
        self.drops = 0
        self.agent = NullAgent(name)
        self.sockets = ControlSockets(host, port)
        self.port = self.sockets.port
        advertised = self.port if advertised_port is None else advertised_port
        self.card = make_card(card.pop("engine_id", name), role, host, advertised, self.agent.metadata(), **card)
        self.recorder = Recorder()
        self.strangers: list[Ended] = []
        self.waiting: tuple[str, ...] = ()
        self._really_send, self.sockets.send = self.sockets.send, self._send  # type: ignore[method-assign]
        self.peers = Peers(
            identity,
            self.card,
            secret,
            self.agent,
            None if role is Role.DECODE else self.recorder,
            None if role is Role.PREFILL else self.recorder,
            self.sockets,
            waiting=lambda engine_id: self.waiting,
            silence_s=silence_s,
        )
        self.turn()

    def _send(self, route: int | bytes, frame: bytes) -> bool:
        self.sent.append(frame)
        if self.drops:
            self.drops -= 1
            return False
        return self._really_send(route, frame)

    def now(self) -> float:
        return time.monotonic() + self.skipped_s

    def turn(self) -> None:
        self.peers.receive(self.now())
        for ended in self.agent.poll()[0]:
            if not self.peers.ended(ended):
                self.strangers.append(ended)
        self.peers.tick(self.now())

    def dial(self, other: LinkEngine) -> None:
        self.peers.dial(other.card.host, other.port)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sockets.close()


def turn_until(condition: Callable[[], object], *engines: LinkEngine, timeout_s: float = 10.0) -> None:
    """Drive engines until something is so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, [(e.name, e.recorder.told) for e in engines]
        for engine in engines:
            engine.turn()
        engines[0].sockets.wait(0.002)


def with_facts(**facts: str | None) -> Identity:
    """IDENTITY with other facts; None takes one away."""
    merged = {**FACTS, **facts}
    return msgspec.structs.replace(IDENTITY, facts={k: v for k, v in merged.items() if v is not None})


def with_geometry(agent: str, **changes: int) -> tuple[RankCard, ...]:
    """Ranks of a card with one rank of another geometry."""
    return (RankCard(agent=f"agent {agent}".encode(), geometry=replace(GEOMETRY, **changes)),)
