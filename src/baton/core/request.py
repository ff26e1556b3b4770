"""A request (immutable input) and what comes back for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from baton.core.handoff import Handoff, Ticket
from baton.core.sampling import SamplingParams


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to complete.

    Attributes:
        request_id: unique among live requests; used for logs and for the caller, never for matching peers.
        prompt_token_ids: at least one token.
        params: `seed` must be set here (the front draws one when the caller gave none).
        priority: lower goes first; ties go by arrival.
        cache_salt: requests share cached prefixes only with requests of the same salt.
        eos_token_ids: the model's own end-of-sequence tokens.
        handoff: the prompt's KV goes to, or comes from, another engine.
        resumed: the first outputs, known already (another engine sampled them): what follows is what this engine would
            have gone on with. Only with n = 1, without handoff and prompt logprobs.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    eos_token_ids: frozenset[int] = frozenset()
    handoff: Handoff | None = None
    resumed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the raw logits (before penalties and temperature).

    Attributes:
        token_id: the token at this position.
        logprob: its natural log-probability.
        rank: 1 for the most likely token.
        top: (token id, logprob) of the most likely tokens, best first; may include token_id.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceDelta:
    """What one step added to one sequence of a request.

    Attributes:
        index: which of the n sequences.
        token_ids: new output tokens, in order; empty for a pure end.
        logprobs: one entry per new token, or empty when not asked for.
        prompt_logprobs: complete list for prompt tokens 1.., on the delta that ends prefill; else empty.
        finish_reason: set on the last delta of this sequence, and only there.
        stop_token_id: the stop token that ended it, if one of stop_token_ids did.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
        ticket: on the last delta of sequence 0 of a request that gives its KV away.
        error: with FinishReason.ERROR, one line about a hand-off that failed; None: its grammar cannot be followed.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    ticket: Ticket | None = None
    error: str | None = None
