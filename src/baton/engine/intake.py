"""What callers hand to the Python front, checked and made uniform."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from baton.core.errors import RequestError
from baton.core.sampling import SamplingParams

Prompt = str | Sequence[int]


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, from one prompt or several. Arrays and tensors of token ids count as lists.

    Raises:
        RequestError: neither text nor token ids.
    """
    listed = _as_list(prompts)
    if isinstance(listed, str) or (listed and _is_integer(listed[0])):
        return [listed]
    return [_as_list(prompt) for prompt in listed]


def as_token_ids(prompt: Sequence[Any]) -> tuple[int, ...]:
    """Token ids as plain integers.

    Raises:
        RequestError: something in the list is no integer.
    """
    for token in prompt:
        if not _is_integer(token):
            raise RequestError(f"a prompt is text or a list of token ids, got {token!r} in a list", param="prompt")
    return tuple(map(operator.index, prompt))


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    """One SamplingParams a prompt.

    Raises:
        RequestError: not as many as prompts, or something else.
    """
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise RequestError("params must be a SamplingParams or a list of them", param="params")
    if len(params) != num_prompts:
        raise RequestError(f"got {len(params)} sampling params for {num_prompts} prompts", param="params")
    return list(params)


def _as_list(value: Any) -> Any:
    """Text as it is; anything else that can be walked as a list."""
    if isinstance(value, str):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict | bytes) or not isinstance(value, Iterable):
        raise RequestError(f"a prompt is text or a list of token ids, got {type(value).__name__}", param="prompt")
    return list(value)


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
