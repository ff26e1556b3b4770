"""Two legs, one answer in one piece: the decode worker's, with what only the prefill worker knows of the prompt."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from baton.router.body import Asked
from baton.router.relay import First

_NULL = Raw(b"null")
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def merge(asked: Asked, first: First, prefilled: bytes, decoded: bytes) -> bytes:
    """The answer.

    Args:
        first, prefilled: the prefill worker's answer, read and as it came.
        decoded: the decode worker's.

    Raises:
        ValueError: one of them is no such answer.
    """
    try:
        return _merged(asked, first, prefilled, decoded)
    except (KeyError, IndexError, TypeError, AttributeError, msgspec.DecodeError) as error:
        raise ValueError(f"the two halves of an answer do not fit: {error!r}") from error


def _merged(asked: Asked, first: First, prefilled: bytes, decoded: bytes) -> bytes:
    fields = _fields(decoded)
    fields.pop("kv_transfer_params", None)
    if "usage" in fields:
        usage = msgspec.json.decode(fields["usage"])
        fields["usage"] = Raw(_encode(first.prompt_usage.merged(usage)))
    wishes = asked.wishes
    if wishes.prompt_logprobs is not None or (wishes.echo and not asked.chat):
        _add_prompt(asked, fields, msgspec.json.decode(prefilled))
    return _encode(fields)


def _add_prompt(asked: Asked, fields: dict[str, Raw], prefilled: dict[str, Any]) -> None:
    if asked.chat:
        fields["prompt_logprobs"] = Raw(_encode(prefilled.get("prompt_logprobs")))
        return
    choices = msgspec.json.decode(fields["choices"])
    source = prefilled["choices"][0]
    for choice in choices:
        if "prompt_logprobs" in source:
            choice["prompt_logprobs"] = source["prompt_logprobs"]
        if asked.wishes.echo:
            _echo(asked, choice, source)
    fields["choices"] = Raw(_encode(choices))


def _echo(asked: Asked, choice: dict[str, Any], source: dict[str, Any]) -> None:
    """Put the prompt before a choice. source: the prefill worker's choice, which is the prompt and token 1."""
    prompt = source.get("logprobs")
    if prompt is None:
        assert asked.fields is not None
        choice["text"] = msgspec.json.decode(asked.fields["prompt"]) + choice["text"]
        return
    start = prompt["text_offset"][-1]  # of token 1
    shown = choice["logprobs"]
    shown["text_offset"] = [offset + start for offset in shown["text_offset"]]
    for name in _LISTS:
        shown[name] = prompt[name][:-1] + shown[name]
    choice["text"] = source["text"][:start] + choice["text"]
