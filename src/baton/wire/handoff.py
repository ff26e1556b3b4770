"""Messages between two engines about a hand-off, in msgpack. HANDOFF in docs/protocol.md gives their order.

    taker -> giver   Hello, Reserving, NotNeeded, Cancel, Alive, Taken
    giver -> taker   Welcome, Refusal, Offer, Done, Fail, Cancelled, Expired, Gone, Pulse

All are idempotent. `rank` is the giver's. Done travels as the notice of the last WRITE, everything else on the
control channel.
"""

from __future__ import annotations

import msgspec

from baton.core.exchange import FirstToken
from baton.core.geometry import RankGeometry
from baton.core.handoff import Role, TransferMode

PROTOCOL_VERSION = 3


class RankCard(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an engine: how to reach its memory. agent: metadata for `Agent.connect`; device: None is the host."""

    agent: bytes
    geometry: RankGeometry
    device: int | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What must agree before anything else of a card is decoded.

    Attributes:
        transfer_modes: those that the engine does; two engines need one in common.
        facts: named facts of the model as it is served (architecture, layer geometry, dtypes, rope, tokenizer,
            optionally weights); never a path or a name.
    """

    protocol_version: int
    transfer_modes: tuple[TransferMode, ...]
    facts: dict[str, str]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Who an engine is.

    Attributes:
        engine_id: of this incarnation.
        host, port: of its control endpoint, as others reach it.
        lease_s: how long it keeps blocks for a silent taker.
    """

    engine_id: str
    host: str
    port: int
    role: Role
    tp_size: int
    pp_size: int
    dp_size: int
    ranks: tuple[RankCard, ...]
    lease_s: float


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message on a connection. card: msgpack of a Card, decoded only when the identity agrees."""

    identity: Identity
    card: bytes
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to Hello: the two can work together."""

    identity: Identity
    card: bytes
    nonce: bytes


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to Hello: they cannot. `giver` and `taker` are the two values of `field`."""

    field: str
    giver: str
    taker: str


class Reserving(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """My hand is open. Fields as in core.exchange.Reserve.

    Attributes:
        mode: PUSH: write into these blocks, as soon as you can. PULL: say when the prompt is there; I read.
    """

    transfer_id: str
    mode: TransferMode
    block_ids: tuple[int, ...]
    num_tokens: int
    prompt_digest: bytes
    num_cached_tokens: int


class NotNeeded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Never reserved, and not wanted: free now."""

    transfer_id: str


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop; answered by Cancelled when no posted transfer is left."""

    transfer_id: str


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Once a second: the transfers the taker waits for. Renews their leases; answered by Pulse with the same number."""

    number: int
    transfer_ids: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pull: every byte was read; free now."""

    transfer_id: str


class Offer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pull: the answer to Reserving once prefill has ended.

    Attributes:
        block_ids: the giver's, of tokens [0, num_tokens).
        digests: by taker rank, of what it is to read; None when not asked for.
    """

    transfer_id: str
    rank: int
    block_ids: tuple[int, ...]
    num_tokens: int
    first_tokens: tuple[FirstToken, ...]
    digests: dict[int, bytes | None]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Push: all bytes of this rank are visible. digest: of the bytes that crossed, when asked for."""

    transfer_id: str
    rank: int
    num_tokens: int
    first_tokens: tuple[FirstToken, ...]
    digest: bytes | None = None


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing more will come from this rank, and none of its transfers is in flight."""

    transfer_id: str
    rank: int
    reason: str


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Drained: no transfer of this rank is in flight, and none will be posted."""

    transfer_id: str
    rank: int


class Expired(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The lease ended before you came; nothing is in flight."""

    transfer_id: str


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """I do not know this transfer (any more); nothing of it is in flight."""

    transfer_id: str


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to Alive."""

    number: int


FromTaker = Hello | Reserving | NotNeeded | Cancel | Alive | Taken
FromGiver = Welcome | Refusal | Offer | Done | Fail | Cancelled | Expired | Gone | Pulse
