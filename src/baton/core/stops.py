"""When a sequence ends by a token it produced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.core.request import FinishReason, Request


class Stop(NamedTuple):
    """Why a sequence ends; stop_token_id only if one of stop_token_ids ended it."""

    reason: FinishReason
    stop_token_id: int | None = None


def stop_after(request: Request, token: int, num_output_tokens: int, limit: int) -> Stop | None:
    """Whether `token`, output number num_output_tokens (from 1), is the last one.

    Args:
        limit: tokens the sequence may hold, prompt included (max_tokens and max_model_len together).
    """
    params = request.params
    if num_output_tokens >= params.min_tokens:
        if token in request.eos_token_ids and not params.ignore_eos:
            return Stop(FinishReason.STOP)
        if token in params.stop_token_ids:
            return Stop(FinishReason.STOP, token)
    if len(request.prompt_token_ids) + num_output_tokens >= limit:
        return Stop(FinishReason.LENGTH)
    return None


def first_stop(request: Request, token_ids: Sequence[int], max_model_len: int) -> tuple[int, Stop | None]:
    """How many of these first outputs count, and why the last of them ends the sequence; None if it goes on."""
    limit = token_limit(request, max_model_len)
    for number, token in enumerate(token_ids, start=1):
        stop = stop_after(request, token, number, limit)
        if stop is not None:
            return number, stop
    return len(token_ids), None


def token_limit(request: Request, max_model_len: int) -> int:
    """Tokens a sequence of this request may hold, prompt included."""
    max_tokens = request.params.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(len(request.prompt_token_ids) + max_tokens, max_model_len)
