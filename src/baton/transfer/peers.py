"""Makes, watches and mends the links of one engine to others, as giver and as taker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from baton.core.handoff import Role
from baton.obs.log import get_logger
from baton.transfer.agent import Agent, AgentError, Ended
from baton.transfer.card import Judge, shown
from baton.transfer.inbound import Inbound
from baton.transfer.incarnations import Incarnation, Incarnations
from baton.transfer.link import GiverPeers, Link, TakerPeers
from baton.transfer.meeting import Meeting
from baton.transfer.outbound import Outbound
from baton.wire.control import Arrival, ControlSockets
from baton.wire.decoder import Decoder
from baton.wire.handoff import Card, Done, FromGiver, FromTaker, Identity
from baton.wire.seal import Frame, Seal

_log = get_logger(__name__)
_FORGET_S = 600.0  # without a link: then its agents are disconnected


class Peers:
    """A `link.Control` without thread or clock: in each turn call `receive`, then everything else, then `tick`.

    Args:
        me, card: of this engine.
        secret: shared by all engines; None: whoever reaches the endpoint is trusted.
        agent: of this rank.
        giver: None for a pure taker.
        taker: None for a pure giver.
        waiting: transfers that the taker waits for, of one giver; their leases are renewed each second.
        rank: of this worker.
        silence_s: without any authentic frame for this long a peer is lost.
    """

    def __init__(
        self,
        me: Identity,
        card: Card,
        secret: bytes | None,
        agent: Agent,
        giver: GiverPeers | None,
        taker: TakerPeers | None,
        sockets: ControlSockets,
        *,
        waiting: Callable[[str], Sequence[str]] = lambda engine_id: (),
        rank: int = 0,
        silence_s: float = 5.0,
    ) -> None:
        assert (giver is None) == (card.role is Role.DECODE), "a giver is PREFILL or MIXED"
        assert (taker is None) == (card.role is Role.PREFILL), "a taker is DECODE or MIXED"
        root = Seal(secret)
        self._incarnations = Incarnations(agent, card, rank, root)
        self._meeting = Meeting(
            sockets=sockets,
            root=root,
            judge=Judge(me, card),
            incarnations=self._incarnations,
            silence_s=silence_s,
        )
        self._giver = giver
        self._taker = taker
        self._inbound = Inbound(self._meeting, giver, self._bury)
        self._outbound = None if taker is None else Outbound(self._meeting, taker, waiting, self._bury)
        self._done = Decoder(Done)
        self._now = self._received_s = -math.inf

    # As link.Control.

    def send(self, engine_id: str, message: FromGiver | FromTaker) -> None:
        """Queue a message to a linked peer; without a link it is dropped."""
        if isinstance(message, FromGiver):
            self._inbound.send(engine_id, message)
        else:
            assert self._outbound is not None, "only a taker says this"
            self._outbound.send(engine_id, message)

    def dial(self, host: str, port: int) -> None:
        """Make a link to the giver at this address: `linked` follows (at once if there is one), or `unreachable`."""
        assert self._outbound is not None, "only a taker dials"
        self._outbound.dial(host, port, self._now)

    # Driven by the worker.

    def receive(self, now: float) -> None:
        """Take what has arrived. now: seconds on a clock that only goes forward.

        After a long pause of this process (SIGSTOP) what waits in the sockets is as old as the pause. Takers have given
        this engine up meanwhile, and their blocks may serve others by now: nothing of it may be acted upon.
        """
        if now - self._received_s > self._meeting.silence_s:
            self._inbound.lose_all(f"this engine paused for {now - self._received_s:.1f} s", now)
        self._now = self._received_s = now
        for arrival in self._meeting.sockets.drain():
            frame = Frame.parse(arrival.frame)
            if frame is None:
                self._meeting.num_malformed += 1
            else:
                self._arrived(arrival, frame, now)

    def _arrived(self, arrival: Arrival, frame: Frame, now: float) -> None:
        if isinstance(arrival.route, bytes):
            self._inbound.arrived(arrival, frame, now)
        elif self._outbound is not None:
            self._outbound.arrived(arrival.route, frame, now)

    def fence(self, now: float) -> None:
        """To be called right before a post to a taker: `receive` sees a pause only between two turns.

        Raises:
            AgentError: this process paused since `receive`, for so long that takers have given it up.
        """
        if now - self._received_s > self._meeting.silence_s:
            raise AgentError(f"this engine paused for {now - self._received_s:.1f} s")

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        self._inbound.tick(now)
        if self._outbound is not None:
            self._outbound.tick(now)
        for one in self._incarnations.idle(now - _FORGET_S, self._linked):
            self._forget(one, revive=False)

    def ended(self, ended: Ended) -> bool:
        """Whether this was the end of a post of these peers, and nobody else's."""
        return self._incarnations.ended(ended)

    def _bury(self, one: Incarnation, reason: str) -> None:
        """It is known to have ended: nothing of it is in flight."""
        engine_id = one.link.engine_id
        _log.info("engine %s has ended: %s", shown(engine_id), shown(reason))
        was_linked = self._inbound.drop(engine_id)
        self._forget(one, revive=True)
        if self._giver is not None and was_linked:
            self._giver.taker_lost(engine_id, reason)
        if self._taker is not None and one.gave:
            self._taker.giver_lost(engine_id, reason, dead=True)

    def _forget(self, one: Incarnation, *, revive: bool) -> None:
        if self._outbound is not None:
            self._outbound.forget(one.link.engine_id, self._now, revive=revive)
        self._incarnations.forget(one)

    # Notices of agents.

    def open_notice(self, peer_name: str, payload: bytes) -> tuple[Link, Done] | None:
        """Whose it is, and what it says; None: dropped and counted. A giver that is lost can still finish."""
        one = self._incarnations.of_agent(peer_name)
        if one is None:
            self._meeting.num_late += 1
            return None
        body = one.from_it.open(payload)
        done: Done | None = None if body is None else self._done.decode(body)
        if done is None:
            self._meeting.num_malformed += 1
            return None
        return one.link, done

    def seal_notice(self, engine_id: str, done: Done) -> bytes:
        """The payload of a notice to a taker that is or was linked."""
        one = self._incarnations.get(engine_id)
        assert one is not None, f"engine {engine_id} was never linked"
        return one.to_it.seal(msgspec.msgpack.encode(done))

    # Figures.

    def confirmed_s(self, engine_id: str) -> float:
        """When the latest Alive was sent that this giver is known to have received; -inf: none."""
        one = self._incarnations.get(engine_id)
        return -math.inf if one is None else one.confirmed_s

    @property
    def _linked(self) -> set[str]:
        return self._inbound.linked | (set() if self._outbound is None else self._outbound.linked)

    @property
    def num_links(self) -> int:
        """Peers that are linked, as givers, takers or both."""
        return len(self._linked)

    @property
    def num_malformed(self) -> int:
        """Frames that were no authentic message, and connections that were none."""
        return self._meeting.num_malformed + self._meeting.sockets.num_malformed

    @property
    def num_late(self) -> int:
        """Frames and notices that belong to no link."""
        return self._meeting.num_late
