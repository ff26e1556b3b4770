"""Anything at all, sent to a live endpoint whose link must go on working."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.core.handoff import Role
from baton.wire.handoff import Fail, Hello, NotNeeded
from baton.wire.seal import Frame, Kind, Seal, Session
from tests.transfer.peers_harness import IDENTITY, SECRET, LinkEngine, make_card, turn_until

pytestmark = pytest.mark.slow

NONCE = b"n" * 16
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
TYPES = ["Hello", "Reserving", "NotNeeded", "Cancel", "Alive", "Taken", "Welcome", "Refusal", "Done", "Pulse", "X"]
FIELDS = ["identity", "card", "nonce", "transfer_id", "block_ids", "num_tokens", "number", "transfer_ids", "field"]
MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5),
)
DEEP = st.integers(1, 100_000).map(lambda depth: b"\x82\xa4type\xa5Alive\xa1x" + b"\x91" * depth + b"\xc0")
BODIES = MESSAGES.map(msgspec.msgpack.encode) | st.binary(max_size=60) | DEEP
FRAMES = st.tuples(
    st.sampled_from(list(Kind)), BODIES, st.sampled_from([NONCE, bytes(16)]), st.integers(0, 3), st.booleans()
)


class Live:
    """A linked pair, and a stranger at the giver's endpoint that knows the secret (or not)."""

    def __init__(self) -> None:
        self.giver = LinkEngine("giver", Role.PREFILL)
        self.taker = LinkEngine("taker", Role.DECODE)
        self.taker.dial(self.giver)
        turn_until(lambda: self.giver.recorder.told, self.giver, self.taker)
        self._context = zmq.Context()
        self.stranger = self._context.socket(zmq.DEALER)
        self.stranger.connect(f"tcp://127.0.0.1:{self.giver.port}")
        self.count = 0

    def check(self) -> None:
        """A message and its answer pass; the link is the first one."""
        self.count += 1
        wanted = NotNeeded(transfer_id=str(self.count))
        answer = Fail(transfer_id=str(self.count), rank=0, reason="")
        self.taker.peers.send("giver", wanted)
        turn_until(lambda: ("from_taker", "taker", wanted) in self.giver.recorder.told, self.giver, self.taker)
        self.giver.peers.send("taker", answer)
        turn_until(lambda: ("from_giver", "giver", answer) in self.taker.recorder.told, self.giver, self.taker)
        assert len(self.taker.recorder.of("linked")) == 1
        assert "taker" not in [told[1] for told in self.giver.recorder.of("taker_lost")]  # strangers may be
        assert not self.taker.recorder.of("giver_lost")
        self.giver.recorder.told.clear()

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.giver.close()
        self.taker.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=4))
def test_any_parts(live: Live, parts: list[bytes]) -> None:
    live.stranger.send_multipart(parts)
    live.check()


@FUZZ
@given(FRAMES)
def test_any_frame_of_one_who_may_know_the_secret(live: Live, frame: tuple[Kind, bytes, bytes, int, bool]) -> None:
    kind, body, session, number, knows = frame
    live.stranger.send(Seal(SECRET if knows else None).frame(kind, body, session, number))
    live.check()


def shaken(live: Live, name: str) -> Session:
    """A stranger's session with the giver."""
    card = msgspec.msgpack.encode(make_card(name, Role.DECODE, name, 1, f"agent {name}".encode()))
    body = msgspec.msgpack.encode(Hello(identity=IDENTITY, card=card, nonce=NONCE))
    while live.stranger.poll(0):
        live.stranger.recv()
    live.stranger.send(Seal(SECRET).frame(Kind.HELLO, body, NONCE))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        turn_until(lambda: live.stranger.poll(0), live.giver, live.taker)
        answer = Frame.parse(live.stranger.recv())
        if answer is not None and answer.kind is Kind.ANSWER and answer.session == NONCE:
            return Session(Seal(SECRET), NONCE, msgspec.msgpack.decode(answer.body)["nonce"], gives=False)
    raise AssertionError("no Welcome")


@FUZZ
@given(st.lists(BODIES, min_size=1, max_size=3), st.integers(0, 10**9))
def test_any_body_of_a_linked_taker(live: Live, bodies: list[bytes], number: int) -> None:
    session = shaken(live, f"s{number}")
    for body in bodies:
        live.stranger.send(session.seal(body))
    live.check()


@FUZZ
@given(st.dictionaries(st.sampled_from(["identity", "card", "nonce", "extra"]), VALUES))
def test_any_hello(live: Live, changes: dict[str, Any]) -> None:
    good = Hello(
        identity=IDENTITY,
        card=msgspec.msgpack.encode(make_card("h", Role.DECODE, "h", 1, b"agent h")),
        nonce=NONCE,
    )
    body = {**msgspec.msgpack.decode(msgspec.msgpack.encode(good)), **changes}
    live.stranger.send(Seal(SECRET).frame(Kind.HELLO, msgspec.msgpack.encode(body), NONCE))
    live.check()
