"""Authenticity of what engines send each other: HMAC-SHA256 with a shared secret, and what makes replay useless.

A frame is `magic | kind | length of mac | session (16) | number (8) | mac | body`. The mac covers everything else.
Without a secret macs are empty and the rest is the same, so that one side with a secret can say so to one without.

Handshake frames carry the taker's nonce as session: an answer belongs to one Hello. Both nonces make the session's
name and two keys, one for each direction (against reflection). Numbers of a session count up from 0 without gaps: a
smaller one is a replay, and after a greater one something was lost and the session is of no more use.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

from baton.core.errors import ConfigError

NONCE_BYTES = 16
_HEAD = struct.Struct(">2sBB16sQ")
_MAGIC = b"Bt"
_MAC_BYTES = 32
_NO_SESSION = bytes(NONCE_BYTES)


class Kind(IntEnum):
    """What a frame is. UNKNOWN (never authentic) asks the taker for a new handshake: the session is not known."""

    HELLO = 1
    ANSWER = 2
    TO_GIVER = 3
    TO_TAKER = 4
    NOTICE = 5
    UNKNOWN = 6


_KINDS = frozenset(Kind)


class Flaw(Enum):
    """Why a session does not open a frame."""

    FORGED = "forged"
    REPLAYED = "replayed"
    GAP = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame taken apart; nothing in it is to be believed yet."""

    kind: Kind
    session: bytes
    number: int
    mac: bytes
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> Frame | None:
        """None: that is no frame."""
        if len(data) < _HEAD.size:
            return None
        magic, kind, mac_bytes, session, number = _HEAD.unpack_from(data)
        end = _HEAD.size + mac_bytes
        if magic != _MAGIC or kind not in _KINDS or mac_bytes not in (0, _MAC_BYTES) or len(data) < end:
            return None
        return cls(kind=Kind(kind), session=session, number=number, mac=data[_HEAD.size : end], body=data[end:])


class Seal:
    """A key that makes frames and knows its own.

    Args:
        secret: shared by engines that trust each other; None: every frame is taken as authentic.

    Raises:
        ConfigError: the secret is empty.
    """

    def __init__(self, secret: bytes | None) -> None:
        if secret == b"":
            raise ConfigError("the peer secret is empty: set one, or none")
        self._key = secret

    @property
    def is_set(self) -> bool:
        """Whether there is a secret."""
        return self._key is not None

    def derive(self, purpose: bytes, *parts: bytes) -> Seal:
        """A key for one purpose; parts of other lengths or in another order make another key."""
        if self._key is None:
            return self
        text = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose, *parts))
        return Seal(hmac.digest(self._key, text, "sha256"))

    def frame(self, kind: Kind, body: bytes, session: bytes = _NO_SESSION, number: int = 0) -> bytes:
        """A frame with this key's mac."""
        mac_bytes = 0 if self._key is None else _MAC_BYTES
        head = _HEAD.pack(_MAGIC, kind, mac_bytes, session, number)
        return head + self._mac(head, body) + body

    def is_authentic(self, frame: Frame) -> bool:
        """Whether the mac is this key's."""
        head = _HEAD.pack(_MAGIC, frame.kind, len(frame.mac), frame.session, frame.number)
        return hmac.compare_digest(frame.mac, self._mac(head, frame.body))

    def _mac(self, head: bytes, body: bytes) -> bytes:
        return b"" if self._key is None else hmac.digest(self._key, head + body, "sha256")


def fresh_nonce() -> bytes:
    """Never the same twice."""
    return secrets.token_bytes(NONCE_BYTES)


def unknown(session: bytes) -> bytes:
    """The answer to a frame of a session that is not known. Worth no more than a hint: anybody can make it."""
    return Seal(None).frame(Kind.UNKNOWN, b"", session)


class Session:
    """One side's end of a session: seals what goes out, opens what comes in.

    Args:
        root: the shared secret.
        taker_nonce, giver_nonce: of Hello and Welcome.
        gives: which side this is.
    """

    def __init__(self, root: Seal, taker_nonce: bytes, giver_nonce: bytes, *, gives: bool) -> None:
        self.name = hashlib.sha256(b"baton session" + taker_nonce + giver_nonce).digest()[:NONCE_BYTES]
        self._out, self._in = (Kind.TO_TAKER, Kind.TO_GIVER) if gives else (Kind.TO_GIVER, Kind.TO_TAKER)
        self._out_seal = root.derive(self._out.name.encode(), taker_nonce, giver_nonce)
        self._in_seal = root.derive(self._in.name.encode(), taker_nonce, giver_nonce)
        self._next_out = 0
        self._next_in = 0

    def seal(self, body: bytes) -> bytes:
        """The next frame to the other side."""
        frame = self._out_seal.frame(self._out, body, self.name, self._next_out)
        self._next_out += 1
        return frame

    def open(self, frame: Frame) -> bytes | Flaw:
        """The body of the next frame of the other side; anything else changes nothing."""
        if frame.kind is not self._in or frame.session != self.name or not self._in_seal.is_authentic(frame):
            return Flaw.FORGED
        if frame.number != self._next_in:
            return Flaw.REPLAYED if frame.number < self._next_in else Flaw.GAP
        self._next_in += 1
        return frame.body


class Notices:
    """Seals notices of one giver's agent to one taker's.

    They travel beside the sessions, in no order, and may outlive one: the key is that of the two incarnations. A
    replayed notice is one about a transfer that has ended, and a transfer_id is never used again.
    """

    def __init__(self, root: Seal, *, giver_id: str, taker_id: str) -> None:
        self._seal = root.derive(Kind.NOTICE.name.encode(), giver_id.encode(), taker_id.encode())

    def seal(self, body: bytes) -> bytes:
        """A notice's payload."""
        return self._seal.frame(Kind.NOTICE, body)

    def open(self, payload: bytes) -> bytes | None:
        """The body, or None: that is no authentic notice."""
        frame = Frame.parse(payload)
        if frame is None or frame.kind is not Kind.NOTICE or not self._seal.is_authentic(frame):
            return None
        return frame.body
