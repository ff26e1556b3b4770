"""Messages between a front (an HTTP server) and one engine process, in msgpack.

    front  -> engine   Submit, Cancel, Withdraw, Ping, Stop
    engine -> front    Ready (once, first), Output (one a step), Refused, Pong, Failed (the last word)

Requests and deltas are the core's own values: msgspec encodes frozen dataclasses as they are.
"""

from __future__ import annotations

import msgspec

from baton.core import exchange
from baton.core.exchange import TransferRecord
from baton.core.handoff import Role, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import SchedulerStats, TransferStats


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Queue a request. Answered by deltas in Output, or by Refused."""

    request: Request


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """End a request, or one of its sequences. Unknown ids are ignored; nothing more comes for what it ends."""

    request_id: str
    index: int | None = None
    reason: FinishReason = FinishReason.ABORT


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Nobody will come for what this engine gives under the id. Unknown ids are ignored."""

    transfer_id: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """End the process: at once, what runs is aborted."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Answered by Pong between two steps: an engine that says nothing for long is stopped, or in a long step."""


class PeerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine is to other engines, and how they reach it.

    Attributes:
        transfer_modes: those that it does.
        engine_id: of this incarnation.
        host, port: of its control endpoint, as others reach it.
    """

    role: Role
    engine_id: str
    host: str
    port: int
    tp_size: int = 1
    pp_size: int = 1
    transfer_modes: tuple[TransferMode, ...] = tuple(TransferMode)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a front must know of an engine.

    Attributes:
        model: as given on the command line.
        tokenizer: folder or file the front loads its tokenizer from; empty when there is none.
        fingerprint: of model, weights, tokenizer and number formats: engines of different ones share no KV.
        eos_token_ids: the model's end-of-sequence tokens, to put into every request.
        vocab_size: rows of the model's output.
        kv_cache_tokens: block_tokens * num_blocks.
        incarnation: random, new with each start of the process; the peer's engine_id where there is one.
        peer: None: it has no control endpoint and cannot hand over.
    """

    model: str
    tokenizer: str
    architecture: str
    dtype: str
    device: str
    fingerprint: str
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    block_tokens: int
    num_blocks: int
    incarnation: str = ""
    peer: PeerInfo | None = None

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.block_tokens * self.num_blocks


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The engine is loaded and takes requests."""

    info: EngineInfo


class Admitted(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A request left the queue for the first time. time_s: seconds since the epoch, on the engine's clock."""

    request_id: str
    time_s: float


class Moment(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Something happened to a hand-off.

    Attributes:
        what: "grant", "progress", "prefilled", "withdraw" (giver); "reserve", "forgo", "landed", "failed" (taker).
        time_s: seconds since the epoch, on the engine's clock.
    """

    transfer_id: str
    what: str
    time_s: float


_MARKED = (
    exchange.Grant,
    exchange.Progress,
    exchange.Prefilled,
    exchange.Withdraw,
    exchange.Reserve,
    exchange.Forgo,
    exchange.Landed,
    exchange.Failed,
)


def moment_of(said: exchange.Command | exchange.Event, time_s: float) -> Moment | None:
    """A command or event as a front is told of it; None for those that end no part of a request."""
    if not isinstance(said, _MARKED):
        return None
    return Moment(transfer_id=said.transfer_id, what=type(said).__name__.lower(), time_s=time_s)


class Output(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What one step brought.

    Attributes:
        time_s: when the step was committed, seconds since the epoch.
        num_tokens: tokens that ran through the model in it.
        transfers: hand-offs that this engine posted and that ended since the last Output.
        transfer_stats: None without a transfer thread.
        moments: of hand-offs since the last Output, in order.
    """

    deltas: tuple[SequenceDelta, ...]
    stats: SchedulerStats
    time_s: float
    num_tokens: int
    admitted: tuple[Admitted, ...] = ()
    transfers: tuple[TransferRecord, ...] = ()
    transfer_stats: TransferStats | None = None
    moments: tuple[Moment, ...] = ()


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The engine does not take this request: the caller's fault, see RequestError."""

    request_id: str
    message: str
    param: str | None = None


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The answer to a Ping."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The engine ends on an error of its own, or could not start (user_error: one line that the user can act on)."""

    message: str
    user_error: bool = False


ToEngine = Submit | Cancel | Withdraw | Ping | Stop
FromEngine = Ready | Output | Refused | Pong | Failed
