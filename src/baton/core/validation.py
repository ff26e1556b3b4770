"""Checks of a request against the model that will serve it. The front calls this before anything is queued."""

from __future__ import annotations

from collections.abc import Iterable

from baton.core.errors import RequestError
from baton.core.request import Request


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
    params = request.params
    _in_vocab(request.prompt_token_ids, "prompt", vocab_size)
    _in_vocab(params.logit_bias, "logit_bias", vocab_size)
    _in_vocab(params.stop_token_ids, "stop_token_ids", vocab_size)
    _in_vocab(params.allowed_token_ids or (), "allowed_token_ids", vocab_size)
    for word in params.bad_words_token_ids:
        _in_vocab(word, "bad_words_token_ids", vocab_size)


def _check_salt(salt: str) -> None:
    try:
        salt.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise RequestError("cache_salt must be valid Unicode text", param="cache_salt") from error


def _in_vocab(token_ids: Iterable[int], param: str, vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param} holds token id {token_id}, outside the vocabulary of {vocab_size}", param=param
            )
