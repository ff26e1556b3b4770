"""What scheduler and transfer thread say to each other about hand-offs.

The giver is the engine that prefills, the taker the one that decodes. The scheduler never touches the network and the
transfer thread never touches a block table: they exchange these values, in order, through two queues.
A *pin* is a set of blocks with one more owner, the transfer. Each pin is settled exactly once, and only then may its
blocks change hands.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.handoff import PeerAddress, TransferMode
from baton.core.request import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first output token of sequence `index`, sampled by the giver."""

    index: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRecord:
    """What one hand-off cost the side that posted it (the giver in push, the taker in pull).

    Attributes:
        mode: how the bytes crossed.
        num_bytes: of those.
        num_descriptors: descriptors posted, after merging.
        post_s: time spent posting.
        wire_s: sum over posts from posting to completion.
        exposed_s: from the end of prefill (push) or from the ticket (pull) to the last completion.
        early_bytes: of num_bytes, posted before prefill ended.
        started_s, ended_s: of the first post and the last completion, seconds since the epoch; None: not told.
    """

    transfer_id: str
    mode: TransferMode
    num_bytes: int
    num_descriptors: int
    post_s: float
    wire_s: float
    exposed_s: float
    early_bytes: int
    started_s: float | None = None
    ended_s: float | None = None


# From the scheduler to the transfer thread, on the giver's side.


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """A request that will give this transfer is queued: a taker that comes for it waits in the right place."""

    transfer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A prefill has its blocks: they may be handed over as far as they are final.

    Attributes:
        pin: names the blocks; a new number for each grant, also after a preemption.
        block_ids: of tokens [0, num_tokens), in order.
        num_tokens: the prompt's.
        prompt_digest: the same, see handoff.prompt_digest.
        num_final_tokens: tokens [0, num_final_tokens) are written and will not change (a prefix hit).
    """

    pin: int
    transfer_id: str
    block_ids: tuple[int, ...]
    num_tokens: int
    prompt_digest: bytes
    num_final_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step has completed: tokens [0, num_final_tokens) of the current grant are final."""

    transfer_id: str
    num_final_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """The whole prompt is final, and its first token(s) are sampled."""

    transfer_id: str
    first_tokens: tuple[FirstToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """The prefill gives its blocks up: nothing more is posted from them. It may come behind Prefilled.

    Attributes:
        reason: one line, for the other side.
        again: it was preempted, and another grant of the same transfer follows; otherwise the transfer has failed.
    """

    transfer_id: str
    reason: str
    again: bool = False


# From the scheduler to the transfer thread, on the taker's side.


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A request that will take this transfer waits in the queue: connect, and keep the giver's lease alive."""

    transfer_id: str
    source: PeerAddress
    mode: TransferMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Destination blocks are free for the network.

    Attributes:
        pin: names the blocks.
        block_ids: of tokens [num_cached_tokens, num_tokens), in order; empty when all are cached.
        num_tokens: the prompt's.
        prompt_digest: the same, see handoff.prompt_digest.
        num_cached_tokens: tokens whose KV is here already; a multiple of this side's block size, or num_tokens.
    """

    pin: int
    transfer_id: str
    source: PeerAddress
    block_ids: tuple[int, ...]
    num_tokens: int
    prompt_digest: bytes
    num_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgo:
    """The taker does not want the transfer (any more): it ended, was aborted, or computes by itself.

    Never reserved: the giver may free at once. Reserved: the pin is settled when nothing can write to it any more.
    """

    transfer_id: str


# From the transfer thread to the scheduler.


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """Taker: every byte of the reserved blocks is there and visible. Its Settled follows."""

    transfer_id: str
    first_tokens: tuple[FirstToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Taker: nothing will land; the request must go on without. Its Settled may come (much) later.

    Attributes:
        reason: one line: what happened, and to which peer.
        refused: the two engines cannot work together (a handshake was refused): trying again is no use.
    """

    transfer_id: str
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """No transfer touches the pin's blocks, or ever will: they may change hands. Exactly one for each pin."""

    pin: int
    record: TransferRecord | None = None


GiverCommand = Announce | Grant | Progress | Prefilled | Withdraw
TakerCommand = Expect | Reserve | Forgo
Command = GiverCommand | TakerCommand
Event = Landed | Failed | Settled
