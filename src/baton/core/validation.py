"""Checks of a request against the model that will serve it. The front calls this before anything is queued."""

from __future__ import annotations

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.core.stops import token_limit


def check_request(request: Request, *, vocab_size: int, max_model_len: int) -> None:
    """Refuse what the model cannot run.

    Raises:
        RequestError: naming the parameter and the numbers.
    """
    num_tokens = len(request.prompt_token_ids)
    if num_tokens == 0:
        raise RequestError("the prompt is empty; give at least one token", param="prompt")
    if num_tokens >= max_model_len:
        raise RequestError(
            f"the prompt has {num_tokens} tokens and max_model_len is {max_model_len}: "
            "no output token fits; shorten the prompt",
            param="prompt",
        )
    _check_salt(request.cache_salt)
    if not isinstance(request.priority, int) or isinstance(request.priority, bool):
        raise RequestError(f"priority must be an integer, got {request.priority!r}", param="priority")
    for token_id in request.prompt_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"the prompt holds token id {token_id}, outside the vocabulary of {vocab_size}", param="prompt"
            )
    request.params.check_vocabulary(vocab_size)
    if request.resumed:
        _check_resumed(request, vocab_size=vocab_size, max_model_len=max_model_len)


def _check_resumed(request: Request, *, vocab_size: int, max_model_len: int) -> None:
    for token_id in request.resumed:
        if not 0 <= token_id < vocab_size:
            raise _resume_error(f"holds token id {token_id}, outside the vocabulary of {vocab_size}")
    room = token_limit(request, max_model_len) - len(request.prompt_token_ids)
    if len(request.resumed) > room:
        raise _resume_error(f"has {len(request.resumed)} tokens; max_tokens and max_model_len leave room for {room}")
    if request.params.n > 1:
        raise _resume_error(f"is possible with n=1 only, got n={request.params.n}")
    if request.handoff is not None:
        raise _resume_error("is not possible with a hand-off; leave kv_transfer_params out")
    if request.params.prompt_logprobs is not None:
        raise _resume_error("is not possible with logprobs of the prompt (prompt_logprobs, or echo with logprobs)")


def _resume_error(what: str) -> RequestError:
    return RequestError(f"resume_token_ids {what}", param="resume_token_ids")


def _check_salt(salt: str) -> None:
    try:
        salt.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise RequestError("cache_salt must be valid Unicode text", param="cache_salt") from error
