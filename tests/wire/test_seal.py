"""Frames are authentic, of their session and direction, and come once and in order; anything else is told apart."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.wire.seal import NONCE_BYTES, Flaw, Frame, Kind, Notices, Seal, Session, fresh_nonce, unknown

SECRET = b"correct horse"
TAKER, GIVER = b"t" * NONCE_BYTES, b"g" * NONCE_BYTES


def sessions(secret: bytes | None = SECRET, other: bytes | None = SECRET) -> tuple[Session, Session]:
    return (
        Session(Seal(secret), TAKER, GIVER, gives=True),
        Session(Seal(other), TAKER, GIVER, gives=False),
    )


def parsed(data: bytes) -> Frame:
    frame = Frame.parse(data)
    assert frame is not None
    return frame


def test_the_layout_is_the_documented_one() -> None:
    """Recomputed from the module's docstring with hmac alone."""
    data = Seal(SECRET).frame(Kind.HELLO, b"body", TAKER, 7)
    head = struct.pack(">2sBB16sQ", b"Bt", 1, 32, TAKER, 7)
    assert data == head + hmac.digest(SECRET, head + b"body", hashlib.sha256) + b"body"
    assert Seal(None).frame(Kind.HELLO, b"body", TAKER, 7) == struct.pack(">2sBB16sQ", b"Bt", 1, 0, TAKER, 7) + b"body"


@pytest.mark.parametrize("secret", [SECRET, None])
def test_both_directions_carry_bodies_in_order(secret: bytes | None) -> None:
    giver, taker = sessions(secret, secret)
    assert giver.name == taker.name
    for count in range(3):
        body = b"%d" % count
        assert taker.open(parsed(giver.seal(body))) == body
        assert giver.open(parsed(taker.seal(body))) == body


@pytest.mark.parametrize("secret", [SECRET, None])
def test_replays_and_gaps_are_told_apart_and_change_nothing(secret: bytes | None) -> None:
    giver, taker = sessions(secret, secret)
    first, second, third = (parsed(giver.seal(b"%d" % n)) for n in range(3))
    assert taker.open(second) is Flaw.GAP
    assert taker.open(first) == b"0"
    assert taker.open(first) is Flaw.REPLAYED
    assert taker.open(third) is Flaw.GAP
    assert taker.open(second) == b"1"
    assert taker.open(third) == b"2"


def test_a_reflected_frame_is_forged() -> None:
    giver, taker = sessions()
    data = giver.seal(b"x")
    assert giver.open(parsed(data)) is Flaw.FORGED
    assert giver.open(parsed(data[:2] + bytes([Kind.TO_GIVER]) + data[3:])) is Flaw.FORGED
    assert taker.open(parsed(data)) == b"x"


@pytest.mark.parametrize(
    "other",
    [
        Session(Seal(b"battery"), TAKER, GIVER, gives=False),
        Session(Seal(None), TAKER, GIVER, gives=False),
        Session(Seal(SECRET), GIVER, TAKER, gives=False),
        Session(Seal(SECRET), TAKER, b"h" * NONCE_BYTES, gives=False),
        Session(Seal(SECRET), b"u" * NONCE_BYTES, GIVER, gives=False),
    ],
    ids=["secret", "no secret", "swapped nonces", "giver's nonce", "taker's nonce"],
)
def test_another_secret_or_handshake_is_forged(other: Session) -> None:
    giver, _ = sessions()
    assert other.open(parsed(giver.seal(b"x"))) is Flaw.FORGED
    assert giver.open(parsed(other.seal(b"x"))) is Flaw.FORGED


def test_every_byte_of_a_frame_counts() -> None:
    giver, _ = sessions()
    data = giver.seal(b"body")
    for place in range(len(data)):
        for flip in (1, 0x80):
            bad = Frame.parse(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            _, taker = sessions()
            assert bad is None or taker.open(bad) is Flaw.FORGED, place


@given(st.binary(max_size=120))
def test_any_bytes_parse_or_do_not(data: bytes) -> None:
    frame = Frame.parse(data)
    if frame is not None:
        assert not Seal(SECRET).is_authentic(frame)


def test_notices_are_of_two_incarnations_in_one_direction() -> None:
    root = Seal(SECRET)
    to_taker = Notices(root, giver_id="g", taker_id="t")
    payload = to_taker.seal(b"done")
    again = Notices(Seal(SECRET), giver_id="g", taker_id="t")
    assert [again.open(payload), again.open(payload)] == [b"done", b"done"]
    for giver_id, taker_id in (("t", "g"), ("g", "u"), ("gt", ""), ("", "gt")):
        assert Notices(root, giver_id=giver_id, taker_id=taker_id).open(payload) is None
    for bad in (
        b"",
        payload[:-1],
        payload + b"x",
        root.frame(Kind.NOTICE, b"done"),
        Seal(None).frame(Kind.NOTICE, b"d"),
    ):
        assert again.open(bad) is None
    session, _ = sessions()
    assert again.open(session.seal(b"done")) is None


def test_derived_keys_depend_on_where_parts_end() -> None:
    frames = {Seal(SECRET).derive(*parts).frame(Kind.HELLO, b"") for parts in ((b"ab",), (b"a", b"b"), (b"", b"ab"))}
    assert len(frames) == 3


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Seal(b"")


def test_nonces_differ_and_unknown_names_its_session() -> None:
    assert len({fresh_nonce() for _ in range(100)}) == 100
    frame = parsed(unknown(TAKER))
    assert (frame.kind, frame.session, frame.mac, frame.body) == (Kind.UNKNOWN, TAKER, b"", b"")
