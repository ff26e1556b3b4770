"""Links to takers: answers Hello, and watches who has shaken hands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from baton.obs.log import get_logger
from baton.transfer.agent import AgentError
from baton.transfer.card import refusal, refusal_text, shown
from baton.transfer.incarnations import Incarnation
from baton.transfer.link import GiverPeers
from baton.transfer.meeting import HANDSHAKE_S, Meeting
from baton.wire.control import Arrival, Route
from baton.wire.decoder import Decoder
from baton.wire.handoff import PROTOCOL_VERSION, Alive, FromGiver, FromTaker, Hello, Pulse, Refusal, Welcome
from baton.wire.seal import Flaw, Frame, Kind, Session, fresh_nonce, unknown

_log = get_logger(__name__)
_MAX_PENDING = 64  # handshakes without a first frame
_MAX_LOGGED = 256


class _Version(msgspec.Struct):
    protocol_version: int


class _AnyHello(msgspec.Struct):
    """What every version of Hello has."""

    identity: _Version


@dataclass(slots=True, eq=False)
class _Sitting:
    """A session with a taker. route: where its latest authentic frame came from; confirmed: there was one."""

    taker: Incarnation
    session: Session
    route: Route
    heard_s: float
    confirmed: bool = False


class Inbound:
    """See the module.

    A session counts from its first authentic frame on: a recorded Hello, sent again by anybody, gets a Welcome and
    changes nothing.

    Args:
        giver: None: this engine gives to nobody; every Hello is refused by its role.
        bury: called with an incarnation that is known to have ended, and why.
    """

    def __init__(self, meeting: Meeting, giver: GiverPeers | None, bury: Callable[[Incarnation, str], None]) -> None:
        self._meeting = meeting
        self._giver = giver
        self._bury = bury
        self._sittings: dict[bytes, _Sitting] = {}  # by session
        self._linked: dict[str, _Sitting] = {}
        self._hello = Decoder(Hello)
        self._any_hello = Decoder(_AnyHello)
        self._messages = Decoder(FromTaker)
        self._logged: set[str] = set()

    @property
    def linked(self) -> set[str]:
        """Engine ids of linked takers."""
        return set(self._linked)

    def send(self, engine_id: str, message: FromGiver) -> None:
        """Queue a message to a linked taker; without a link it is dropped."""
        sitting = self._linked.get(engine_id)
        if sitting is not None:
            self._meeting.sockets.send(sitting.route, sitting.session.seal(msgspec.msgpack.encode(message)))

    def arrived(self, arrival: Arrival, frame: Frame, now: float) -> None:
        """Take a frame that came in at the endpoint."""
        if frame.kind is Kind.HELLO:
            self._on_hello(arrival, frame, now)
        elif frame.kind is Kind.TO_GIVER:
            self._on_message(arrival, frame, now)
        else:
            self._meeting.num_malformed += 1

    def _on_hello(self, arrival: Arrival, frame: Frame, now: float) -> None:
        verdict = self._verdict(frame, now)
        if verdict is None:
            self._meeting.num_malformed += 1
            return
        if isinstance(verdict, Refusal):
            self._log_once(f"refused a taker at {arrival.sender or 'an unknown address'}: {refusal_text(verdict)}")
            answer: Welcome | Refusal = verdict
        else:
            answer = self._welcome(verdict, frame.session, arrival.route, now)
        body = msgspec.msgpack.encode(answer)
        self._meeting.sockets.send(arrival.route, self._meeting.root.frame(Kind.ANSWER, body, frame.session))

    def _verdict(self, frame: Frame, now: float) -> Incarnation | Refusal | None:
        root = self._meeting.root
        if not root.is_authentic(frame):  # nothing in it is looked at
            self._meeting.num_malformed += 1
            has_mac, differs = bool(frame.mac), bool(frame.mac) and root.is_set
            return refusal(
                "peer secret", "set" if root.is_set else "not set", "differs" if differs else _set_or_not(has_mac)
            )
        hello: Hello | None = self._hello.decode(frame.body)
        if hello is None:
            return self._other_version(frame.body)
        if hello.nonce != frame.session:
            return None
        verdict = self._meeting.judge.taker(hello.identity, hello.card)
        if verdict is None or isinstance(verdict, Refusal):
            return verdict
        try:
            return self._meeting.incarnations.meet(verdict, now)
        except AgentError as error:
            return refusal(
                "agent metadata", f"no use for it ({error})", f"an agent of engine {shown(verdict.engine_id)}"
            )

    def _other_version(self, body: bytes) -> Refusal | None:
        hello: _AnyHello | None = self._any_hello.decode(body)
        if hello is None or hello.identity.protocol_version == PROTOCOL_VERSION:
            return None
        return refusal("protocol version", PROTOCOL_VERSION, hello.identity.protocol_version)

    def _welcome(self, taker: Incarnation, taker_nonce: bytes, route: Route, now: float) -> Welcome:
        pending = [name for name, sitting in self._sittings.items() if not sitting.confirmed]
        if len(pending) >= _MAX_PENDING:
            del self._sittings[pending[0]]
        nonce = fresh_nonce()
        session = Session(self._meeting.root, taker_nonce, nonce, gives=True)
        self._sittings[session.name] = _Sitting(taker, session, route, now)
        judge = self._meeting.judge
        return Welcome(identity=judge.me, card=judge.card_bytes, nonce=nonce)

    def _log_once(self, text: str) -> None:
        if text in self._logged:
            return
        if len(self._logged) >= _MAX_LOGGED:
            self._logged.clear()
        self._logged.add(text)
        _log.warning("%s", text)

    def _on_message(self, arrival: Arrival, frame: Frame, now: float) -> None:
        sitting = self._sittings.get(frame.session)
        if sitting is None:
            self._shake_hands_again(arrival, frame)
            return
        body = sitting.session.open(frame)
        if body is Flaw.GAP:
            sitting.heard_s = now
            self._shake_hands_again(arrival, frame)
        elif isinstance(body, Flaw):
            self._meeting.num_malformed += 1
        else:
            sitting.heard_s, sitting.route = now, arrival.route
            self._confirm(sitting)
            self._on_body(sitting, body)

    def _shake_hands_again(self, arrival: Arrival, frame: Frame) -> None:
        self._meeting.num_late += 1
        self._meeting.sockets.send(arrival.route, unknown(frame.session))

    def _confirm(self, sitting: _Sitting) -> None:
        """The taker knows the secret and has seen our nonce: from here on this is its session."""
        if sitting.confirmed:
            return
        sitting.confirmed = True
        taker = sitting.taker
        engine_id, card = taker.link.engine_id, taker.link.card
        for other in self._meeting.incarnations.others_at(card):
            self._bury(other, f"engine {engine_id} has taken its place at {card.host}:{card.port}")
        before = self._linked.get(engine_id)
        if before is not None:
            del self._sittings[before.session.name]
        else:
            _log.info("linked with taker %s at %s:%d", shown(engine_id), shown(card.host), card.port)
        self._linked[engine_id] = sitting
        taker.took = True
        self._meeting.incarnations.warm_up(taker)

    def _on_body(self, sitting: _Sitting, body: bytes) -> None:
        message: FromTaker | None = self._messages.decode(body)
        if message is None or isinstance(message, Hello):
            self._meeting.num_malformed += 1
            return
        if isinstance(message, Alive):
            self.send(sitting.taker.link.engine_id, Pulse(number=message.number))
        assert self._giver is not None, "only a giver welcomes takers"
        self._giver.from_taker(sitting.taker.link, message)

    def tick(self, now: float) -> None:
        """Give up those that have been silent for too long."""
        for sitting in list(self._sittings.values()):
            if not sitting.confirmed:
                if now - sitting.heard_s > HANDSHAKE_S:
                    del self._sittings[sitting.session.name]
            elif now - sitting.heard_s > self._meeting.silence_s:
                self._lose(sitting, f"nothing heard for {self._meeting.silence_s:g} s", now)

    def lose_all(self, reason: str, now: float) -> None:
        """Give up every link: takers must be presumed to have given this engine up."""
        for sitting in list(self._linked.values()):
            self._lose(sitting, reason, now)

    def _lose(self, sitting: _Sitting, reason: str, now: float) -> None:
        engine_id = sitting.taker.link.engine_id
        self.drop(engine_id)
        sitting.taker.idle_since_s = now
        _log.warning("lost taker %s: %s", shown(engine_id), reason)
        assert self._giver is not None
        self._giver.taker_lost(engine_id, reason)

    def drop(self, engine_id: str) -> bool:
        """End the link to a taker; False if there is none."""
        sitting = self._linked.pop(engine_id, None)
        if sitting is None:
            return False
        del self._sittings[sitting.session.name]
        return True


def _set_or_not(is_set: bool) -> str:
    return "set" if is_set else "not set"
