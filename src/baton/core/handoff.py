"""The nouns of a hand-off: who gives, who takes, and what a request asks for.

The giver is the engine that prefills, the taker the one that decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b


class Role(Enum):
    """What an engine does in a hand-off. MIXED serves plain requests, gives and takes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class TransferMode(Enum):
    """Who moves the bytes: the giver WRITEs (push), or the taker READs (pull). The taker decides, for each transfer."""

    PUSH = "push"
    PULL = "pull"


class FailurePolicy(Enum):
    """What a taker does when a hand-off fails: prefill by itself, or end the request with an error."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """Where a giver's control endpoint is.

    Attributes:
        engine_id: the incarnation that is meant; None: whichever answers.
    """

    host: str
    port: int
    engine_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """What a request asks for.

    Attributes:
        transfer_id: made fresh for every attempt; opaque.
        source: the engine to take the prompt's KV from; None: this engine gives it.
        mode: how it is taken; a giver learns it from the taker.
    """

    transfer_id: str
    source: PeerAddress | None = None
    mode: TransferMode = TransferMode.PUSH

    @property
    def gives(self) -> bool:
        """Whether this engine prefills for another."""
        return self.source is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a giver answers when prefill is over: the prompt's KV is kept for whoever shows the transfer_id.

    Attributes:
        block_ids: of the prompt, for proxies that pass them on; the taker does not rely on them.
    """

    transfer_id: str
    num_tokens: int
    block_ids: tuple[int, ...]


def prompt_digest(tokens: Sequence[int]) -> bytes:
    """16 bytes by which the two sides of a hand-off see that they mean the same prompt.

    BLAKE2b-128 over the token ids, 4 bytes each. KV is a function of model and tokens: the models were compared when
    the two engines met, and a cache salt keeps requests apart inside one engine only.
    """
    return blake2b(struct.pack(f"<{len(tokens)}I", *tokens), digest_size=16).digest()
