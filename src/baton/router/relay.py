"""The prefill worker's answer: token 1, which the client can have before the decode worker has anything."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from baton.router.body import Asked
from baton.router.usage import PromptUsage
from baton.wire.openai.chat import ChatChunk, ChatChunkChoice, ChatDelta
from baton.wire.openai.completions import Completion, CompletionChoice

_LOST_CHARACTER = "\ufffd"
_NULL = Raw(b"null")
_encode = msgspec.json.Encoder().encode


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    message: _Message | None = None
    logprobs: Raw = _NULL
    finish_reason: str | None = None


class First(msgspec.Struct, frozen=True):
    """A prefill worker's answer, as far as the router reads it.

    Attributes:
        kv_transfer_params: where the prompt's KV can be had.
    """

    id: str = ""
    created: int = 0
    model: str = ""
    choices: list[_Choice] = []
    usage: _Usage = _Usage()
    kv_transfer_params: Raw = _NULL

    @property
    def prompt_usage(self) -> PromptUsage:
        """What it says of the prompt."""
        details = self.usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return PromptUsage(num_tokens=self.usage.prompt_tokens, num_cached_tokens=cached)

    @property
    def has_ticket(self) -> bool:
        """Whether it says where the prompt's KV can be had."""
        return bytes(self.kv_transfer_params) not in (b"null", b"{}")

    @property
    def ended(self) -> bool:
        """Whether the answer ends with token 1, not only this leg."""
        return bool(self.choices) and self.choices[0].finish_reason != "length"

    @property
    def text(self) -> str:
        """That token 1 shows."""
        choice = self.choices[0]
        return choice.text if choice.message is None else choice.message.content or ""


read_first = msgspec.json.Decoder(First).decode


def relayable(asked: Asked) -> bool:
    """Whether the first token of such a request may come from another stream than the rest.

    One choice, no parser between tokens and text, no usage in every chunk; and nothing that only the decode worker
    would refuse, after the client has been told 200.
    """
    wishes = asked.wishes
    options = wishes.stream_options
    return (
        bool(wishes.stream)
        and asked.demand.splittable
        and (wishes.n or 1) == 1
        and wishes.best_of is None
        and wishes.stream_interval is None
        and not (options is not None and options.continuous_usage_stats)
        and not wishes.return_token_ids
        and wishes.prompt_logprobs is None
        and not asked.has("tools")
        and _limits_fit(asked)
    )


def _limits_fit(asked: Asked) -> bool:
    limit, least = asked.max_tokens, asked.wishes.min_tokens or 0
    return 0 <= least <= (least if limit is None else limit) and (limit is None or limit > 1)


def may_relay(asked: Asked, first: First, max_model_len: int) -> bool:
    """Whether this first token may go to the client of a `relayable` request at once.

    Args:
        max_model_len: of the workers; 0: not known.
    """
    if not first.choices or first.ended or max_model_len < first.usage.prompt_tokens + (asked.max_tokens or 1):
        return False
    return not _held_back(first.text, asked.wishes.stops)


def _held_back(text: str, stops: tuple[str, ...]) -> bool:
    """Whether a worker would not show this text yet: half a character, or where a stop string is or may begin."""
    if text.endswith(_LOST_CHARACTER):
        return True
    starts = range(len(text))
    return any(stop in text or any(stop.startswith(text[start:]) for start in starts) for stop in stops if stop)


def relayed_events(asked: Asked, first: First) -> list[bytes]:
    """The events that one of our servers would send for token 1."""
    choice = first.choices[0]
    if not asked.chat:
        shown = CompletionChoice(index=0, text=choice.text, logprobs=choice.logprobs)  # type: ignore[arg-type]
        return [_event(Completion(id=first.id, created=first.created, model=first.model, choices=[shown]))]
    opening = ChatChunkChoice(index=0, delta=ChatDelta(role="assistant", content=""))
    content = ChatChunkChoice(index=0, delta=ChatDelta(content=first.text), logprobs=choice.logprobs)  # type: ignore[arg-type]
    return [
        _event(ChatChunk(id=first.id, created=first.created, model=first.model, choices=[each]))
        for each in (opening, content)
    ]


def _event(chunk: Any) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"


def has_logprobs(first: First) -> bool:
    """Whether token 1 was shown with its logprobs."""
    return bytes(first.choices[0].logprobs) != b"null"
