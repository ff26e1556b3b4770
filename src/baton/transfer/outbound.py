"""Links to givers: says Hello, keeps the links alive, and mends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from baton.obs.log import get_logger
from baton.transfer.agent import AgentError
from baton.transfer.card import refusal_text, shown
from baton.transfer.incarnations import Incarnation
from baton.transfer.link import TakerPeers
from baton.transfer.meeting import HANDSHAKE_S, Meeting
from baton.wire.decoder import Decoder
from baton.wire.handoff import Alive, Card, FromGiver, FromTaker, Hello, Pulse, Refusal, Welcome
from baton.wire.seal import NONCE_BYTES, Flaw, Frame, Kind, Session, fresh_nonce

_log = get_logger(__name__)
_ALIVE_S = 1.0
_REFUSED_S = 1.0  # how long a refusal stands without asking again
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.25, 4.0  # doubles with each failure
_MEND_S = 0.2  # least time from a handshake to the next with the same giver
_REVIVE_S = 60.0  # how long a lost giver is dialled without being asked for
_MAX_ATTEMPTS = 64  # at once; addresses may come from clients
_MAX_FAILURES = 1024
_MAX_UNANSWERED = 16

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Attempt:
    """A Hello without an answer. wanted: somebody dialled since the last answer."""

    address: Address
    route: int
    nonce: bytes
    started_s: float
    wanted: bool


@dataclass(slots=True, eq=False)
class _Failure:
    """What came of the latest attempt. until_s: the same answer stands; count: failures in a row."""

    reason: str = ""
    refused: bool = False
    until_s: float = 0.0
    count: int = 0
    wanted: bool = False


@dataclass(slots=True, eq=False)
class _Sitting:
    """A session with a giver. broken: frames were lost, or it does not know the session."""

    giver: Incarnation
    address: Address
    route: int
    session: Session
    linked_s: float
    heard_s: float
    alive_s: float
    number: int = 0
    unanswered: dict[int, float] = field(default_factory=dict)  # Alive by number: when it was sent
    broken: bool = False


class Outbound:
    """See the module.

    Every handshake has a connection of its own: one that hangs is never waited for. A session in which a frame was
    lost is replaced by a new handshake, and `linked` tells the taker to say again what is open.

    Args:
        waiting: transfers that the taker waits for, of one giver.
        bury: called with an incarnation that is known to have ended, and why.
    """

    def __init__(
        self,
        meeting: Meeting,
        taker: TakerPeers,
        waiting: Callable[[str], Sequence[str]],
        bury: Callable[[Incarnation, str], None],
    ) -> None:
        self._meeting = meeting
        self._taker = taker
        self._waiting = waiting
        self._bury = bury
        self._attempts: dict[Address, _Attempt] = {}
        self._failures: dict[Address, _Failure] = {}
        self._linked: dict[str, _Sitting] = {}
        self._engine_at: dict[Address, str] = {}
        self._revive: dict[Address, float] = {}  # until when
        self._by_route: dict[int, _Attempt | _Sitting] = {}
        self._answers = Decoder(Welcome | Refusal)
        self._messages = Decoder(FromGiver)

    @property
    def linked(self) -> set[str]:
        """Engine ids of linked givers."""
        return set(self._linked)

    def send(self, engine_id: str, message: FromTaker) -> None:
        """Queue a message to a linked giver; without a link it is dropped."""
        sitting = self._linked.get(engine_id)
        if sitting is not None:
            self._meeting.sockets.send(sitting.route, sitting.session.seal(msgspec.msgpack.encode(message)))

    # Handshakes.

    def dial(self, host: str, port: int, now: float) -> None:
        """As `Control.dial`. While a failure stands it is the answer, at the next tick."""
        address = (host, port)
        sitting = self._linked.get(self._engine_at.get(address, ""))
        if sitting is not None:
            self._taker.linked(host, port, sitting.giver.link)
        elif address in self._attempts:
            self._attempts[address].wanted = True
        elif self._stands(address, now):
            self._failures[address].wanted = True
        else:
            self._attempt(address, now, wanted=True)

    def _stands(self, address: Address, now: float) -> bool:
        failure = self._failures.get(address)
        return failure is not None and now < failure.until_s

    def _attempt(self, address: Address, now: float, *, wanted: bool) -> None:
        if len(self._attempts) >= _MAX_ATTEMPTS:
            self._failed(address, f"{_MAX_ATTEMPTS} other handshakes are under way", now, wanted=wanted)
            return
        judge, nonce = self._meeting.judge, fresh_nonce()
        route = self._meeting.sockets.connect(*address)
        attempt = _Attempt(address, route, nonce, now, wanted)
        self._attempts[address] = self._by_route[route] = attempt
        body = msgspec.msgpack.encode(Hello(identity=judge.me, card=judge.card_bytes, nonce=nonce))
        self._meeting.sockets.send(route, self._meeting.root.frame(Kind.HELLO, body, nonce))

    def _end(self, attempt: _Attempt) -> None:
        del self._attempts[attempt.address]
        self._hang_up(attempt.route)

    def _hang_up(self, route: int) -> None:
        del self._by_route[route]
        self._meeting.sockets.hang_up(route)

    def _failed(self, address: Address, reason: str, now: float, *, wanted: bool, refused: bool = False) -> None:
        if len(self._failures) >= _MAX_FAILURES:
            self._tell_failures()
            del self._failures[next(iter(self._failures))]
        failure = self._failures.setdefault(address, _Failure())
        if failure.reason != reason:
            verb = "refused us" if refused else "is not reachable"
            _log.warning("giver at %s:%d %s: %s", shown(address[0]), address[1], verb, reason)
        backoff_s = min(_FIRST_BACKOFF_S * 2**failure.count, _LAST_BACKOFF_S)
        failure.reason, failure.refused, failure.wanted = reason, refused, failure.wanted or wanted
        failure.until_s = now + (_REFUSED_S if refused else backoff_s)
        failure.count = min(failure.count + 1, 8)

    def _tell_failures(self) -> None:
        for (host, port), failure in list(self._failures.items()):
            if failure.wanted:
                failure.wanted = False
                self._taker.unreachable(host, port, failure.reason, refused=failure.refused)

    # Frames.

    def arrived(self, route: int, frame: Frame, now: float) -> None:
        """Take a frame that came over a dialled connection."""
        owner = self._by_route.get(route)
        if isinstance(owner, _Attempt) and frame.kind is Kind.ANSWER and frame.session == owner.nonce:
            self._on_answer(owner, frame, now)
        elif not isinstance(owner, _Sitting) or frame.session != owner.session.name:
            self._meeting.num_late += 1
        elif frame.kind is Kind.UNKNOWN:  # anybody can say so; the session goes on until there is another
            self._meeting.num_late += 1
            owner.broken = True
        else:
            self._on_message(owner, frame, now)

    def _on_answer(self, attempt: _Attempt, frame: Frame, now: float) -> None:
        answer: Welcome | Refusal | None = self._answers.decode(frame.body)
        if not self._meeting.root.is_authentic(frame) and not _is_about_secrets(answer):
            answer = None
        if isinstance(answer, Welcome):
            verdict = self._verdict(answer)
            if isinstance(verdict, Card):
                self._welcomed(attempt, verdict, answer.nonce, now)
                return
            answer = verdict
        if answer is None:
            self._meeting.num_malformed += 1
            return
        self._end(attempt)
        self._failed(attempt.address, refusal_text(answer), now, wanted=attempt.wanted, refused=True)

    def _verdict(self, welcome: Welcome) -> Card | Refusal | None:
        if len(welcome.nonce) != NONCE_BYTES:
            return None
        return self._meeting.judge.giver(welcome.identity, welcome.card)

    def _welcomed(self, attempt: _Attempt, card: Card, giver_nonce: bytes, now: float) -> None:
        for other in self._meeting.incarnations.others_at(card):
            self._bury(other, f"engine {card.engine_id} has taken its place at {card.host}:{card.port}")
        try:
            giver = self._meeting.incarnations.meet(card, now)
        except AgentError as error:
            self._end(attempt)
            self._failed(attempt.address, f"cannot reach its memory: {error}", now, wanted=attempt.wanted)
            return
        session = Session(self._meeting.root, attempt.nonce, giver_nonce, gives=False)
        del self._attempts[attempt.address]
        sitting = _Sitting(giver, attempt.address, attempt.route, session, now, now, now)
        self._link(sitting, now)

    def _link(self, sitting: _Sitting, now: float) -> None:
        giver, engine_id = sitting.giver, sitting.giver.link.engine_id
        before = self._linked.get(engine_id)
        if before is not None:
            self._hang_up(before.route)
        else:
            _log.info("linked with giver %s at %s:%d", shown(engine_id), shown(sitting.address[0]), sitting.address[1])
        self._linked[engine_id] = self._by_route[sitting.route] = sitting
        self._engine_at[sitting.address] = engine_id
        giver.gave = True
        self._say_alive(sitting, now)  # its first frame confirms the session; Hello has renewed no lease
        self._meeting.incarnations.warm_up(giver)
        for host, port in self._addresses(engine_id):
            self._failures.pop((host, port), None)
            self._revive.pop((host, port), None)
            self._taker.linked(host, port, giver.link)

    def _addresses(self, engine_id: str) -> list[Address]:
        return [address for address, engine in self._engine_at.items() if engine == engine_id]

    def _on_message(self, sitting: _Sitting, frame: Frame, now: float) -> None:
        body = sitting.session.open(frame)
        if body is Flaw.GAP:
            sitting.heard_s, sitting.broken = now, True
        elif isinstance(body, Flaw):
            self._meeting.num_malformed += 1
        else:
            sitting.heard_s = now
            message: FromGiver | None = self._messages.decode(body)
            if message is None or isinstance(message, Welcome | Refusal):
                self._meeting.num_malformed += 1
            elif isinstance(message, Pulse):
                sent_s = sitting.unanswered.pop(message.number, sitting.giver.confirmed_s)
                sitting.giver.confirmed_s = max(sitting.giver.confirmed_s, sent_s)
            else:
                self._taker.from_giver(sitting.giver.link, message)

    # Time.

    def tick(self, now: float) -> None:
        """Answer dials, say who is alive, give up those that have been silent for too long, and dial them again."""
        for attempt in list(self._attempts.values()):
            self._check_attempt(attempt, now)
        self._tell_failures()
        for sitting in list(self._linked.values()):
            self._check_sitting(sitting, now)
        for address, until_s in list(self._revive.items()):
            if now > until_s:
                del self._revive[address]
            else:
                self._mend(address, now)
        for address, failure in list(self._failures.items()):
            if now > failure.until_s + _REVIVE_S:
                del self._failures[address]

    def _check_attempt(self, attempt: _Attempt, now: float) -> None:
        problem = self._meeting.sockets.problem(attempt.route)
        if problem is None and now - attempt.started_s > HANDSHAKE_S:
            problem = f"no answer within {HANDSHAKE_S:g} s"
        if problem is not None:
            self._end(attempt)
            self._failed(attempt.address, problem, now, wanted=attempt.wanted)

    def _check_sitting(self, sitting: _Sitting, now: float) -> None:
        if now - sitting.heard_s > self._meeting.silence_s:
            self._lose(sitting, now)
            return
        if sitting.broken and now - sitting.linked_s >= _MEND_S:
            self._mend(sitting.address, now)
        if now >= sitting.alive_s:
            self._say_alive(sitting, now)

    def _mend(self, address: Address, now: float) -> None:
        if address not in self._attempts and not self._stands(address, now):
            self._attempt(address, now, wanted=False)

    def _say_alive(self, sitting: _Sitting, now: float) -> None:
        engine_id = sitting.giver.link.engine_id
        sitting.alive_s = now + _ALIVE_S
        sitting.number += 1
        sitting.unanswered[sitting.number] = now
        if len(sitting.unanswered) > _MAX_UNANSWERED:
            del sitting.unanswered[next(iter(sitting.unanswered))]
        self.send(engine_id, Alive(number=sitting.number, transfer_ids=tuple(self._waiting(engine_id))))

    def _lose(self, sitting: _Sitting, now: float) -> None:
        engine_id = sitting.giver.link.engine_id
        self._unlink(sitting)
        sitting.giver.idle_since_s = now
        for address in self._addresses(engine_id):
            self._revive[address] = now + _REVIVE_S
        reason = f"nothing heard for {self._meeting.silence_s:g} s"
        _log.warning("lost giver %s: %s", shown(engine_id), reason)
        self._taker.giver_lost(engine_id, reason, dead=False)

    def _unlink(self, sitting: _Sitting) -> None:
        del self._linked[sitting.giver.link.engine_id]
        self._hang_up(sitting.route)

    def forget(self, engine_id: str, now: float, *, revive: bool) -> None:
        """End the link to a giver that has ended, and forget where it was. revive: see who is at its addresses now."""
        sitting = self._linked.get(engine_id)
        if sitting is not None:
            self._unlink(sitting)
        for address in self._addresses(engine_id):
            del self._engine_at[address]
            if revive:
                self._revive[address] = now + _REVIVE_S


def _is_about_secrets(answer: Welcome | Refusal | None) -> bool:
    """The one answer that the other side cannot authenticate."""
    return isinstance(answer, Refusal) and answer.field == "peer secret"
