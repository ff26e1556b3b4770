"""The nouns of a fleet: what a worker is said to be, what it says of itself, how it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from baton.core.handoff import Role, TransferMode
from baton.wire.engine import PeerInfo


class WorkerKind(Enum):
    """BATON: one of our servers, which says all about itself at /stats. OPENAI: any other, known by its spec alone."""

    BATON = "baton"
    OPENAI = "openai"


class WorkerState(Enum):
    """READY takes requests; DRAINING only ends what it has; DOWN does not answer, and STARTING does not yet."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker as a person, a file or a registration names it.

    Attributes:
        url: without a path, such as http://10.0.0.1:8000.
        role: None: ask it (only workers of kind BATON can be asked).
        transfer_mode: of a worker that cannot be asked; None: pull.
        peer: how others reach the control endpoint of a worker that cannot be asked; needed for push.
        api_key: the bearer token it asks for; None: the client's own is passed on.
    """

    url: str
    role: Role | None = None
    transfer_mode: TransferMode | None = None
    peer: PeerInfo | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What one incarnation of a worker is.

    Attributes:
        incarnation: another one after every restart of its engine.
        models: the names it serves.
        fingerprint: of model and weights; "" where it is not told. Only equal ones are paired.
        block_tokens, num_blocks, max_num_seqs, max_model_len: 0 where it is not told.
    """

    kind: WorkerKind
    incarnation: str
    role: Role
    transfer_modes: frozenset[TransferMode] = frozenset()
    peer: PeerInfo | None = None
    models: tuple[str, ...] = ()
    fingerprint: str = ""
    block_tokens: int = 0
    num_blocks: int = 0
    max_num_seqs: int = 0
    max_model_len: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGauges:
    """What a worker said last of its load. All zero for one that cannot be asked.

    Attributes:
        read_s: when, on the router's monotonic clock.
        num_leased: prompts it keeps for others; it must not leave before they are fetched.
    """

    read_s: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_reserved: int = 0
    used_blocks: int = 0
    pinned_blocks: int = 0
    num_leased: int = 0
    num_in_flight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRef:
    """Where a leg of a request goes: one incarnation of one worker."""

    worker_id: str
    url: str
    facts: WorkerFacts
    api_key: str | None = None


class Outcome(Enum):
    """How a leg ended, as the fleet learns from it.

    REFUSED: the request's fault (4xx). BUSY: 429 or 503 with the worker well. FAILED: no connection, a broken answer,
    any other 5xx. CANCELLED: given up by us or by the client.
    """

    DONE = "done"
    REFUSED = "refused"
    BUSY = "busy"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who serves a request.

    Attributes:
        prefill: None: the decode worker prefills by itself.
        decode: None: either the prefill worker answers it alone (`mode` is None too), or it is chosen when the
            prefill has ended (`mode` is PULL).
        mode: None: one worker serves it whole.
        reason: why it is so, in a word or two, for records.
    """

    prefill: WorkerRef | None
    decode: WorkerRef | None
    mode: TransferMode | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one leg takes of a worker, from its begin to its end.

    Attributes:
        num_tokens: to compute: the prompt where it prefills, and the most that it may generate where it decodes.
        prompt_blocks, final_blocks: KV blocks it needs at its begin, and at most at its end.
        inbound_tokens: whose KV comes from another worker.
    """

    num_tokens: int
    prompt_blocks: int = 0
    final_blocks: int = 0
    inbound_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Outstanding:
    """What this router has sent to a worker and not seen the end of: the sum of shares."""

    num_requests: int = 0
    num_tokens: int = 0
    prompt_blocks: int = 0
    final_blocks: int = 0
    inbound_tokens: int = 0

    def add(self, share: Share) -> None:
        """A leg begins."""
        self._move(share, 1)

    def take_off(self, share: Share) -> None:
        """A leg that was added has ended."""
        self._move(share, -1)

    def _move(self, share: Share, sign: int) -> None:
        self.num_requests += sign
        self.num_tokens += sign * share.num_tokens
        self.prompt_blocks += sign * share.prompt_blocks
        self.final_blocks += sign * share.final_blocks
        self.inbound_tokens += sign * share.inbound_tokens
