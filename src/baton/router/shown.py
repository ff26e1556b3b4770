"""What the client of a stream has of its answer, so that another worker can go on where one broke off.

The rule of both relaying a first token and going on after a death: the client has so many tokens, which are this text;
exactly that is left out of the next worker's stream. If that stream says something else, it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_FOLDED_BYTES = 1 << 16
_DATA = len(b"data: ")


class MismatchError(Exception):
    """A worker that goes on with an answer does not agree with what the client has of it."""


class _Delta(msgspec.Struct, frozen=True):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class Shown:
    """The part of a one-choice answer that was sent to its client. Events are kept unread until they are many.

    Attributes:
        num_tokens: it shows all that these tokens show, and nothing of later ones.
        created: of its chunks, as the JSON number; b"" before the first.
    """

    __slots__ = ("_events", "_finished", "_ids", "_opened", "_size", "_text", "created", "num_tokens")

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._size = 0
        self._ids: list[bytes] = []
        self._text: list[str] = []
        self._opened = self._finished = False
        self.num_tokens = 0
        self.created = b""

    def add(self, event: bytes, ids: bytes, num_ids: int) -> None:
        """An event is being sent. ids: of the tokens it brings, with spaces between them; b"" when not known."""
        self._events.append(event)
        self._size += len(event)
        self.num_tokens += num_ids
        if ids:
            self._ids.append(ids)
        if self._size > _FOLDED_BYTES:
            self._fold()

    def learn(self, ids: bytes) -> None:
        """The ids of tokens that were sent before they were known."""
        self._ids.append(ids)

    @property
    def ids(self) -> bytes:
        """All token ids, with commas between them; fewer than num_tokens while some are not known."""
        self._fold()
        return b",".join(self._ids)

    @property
    def resumable(self) -> bool:
        """Whether the ids of all its tokens are known, and there are any."""
        ids = self.ids
        return bool(ids) and ids.count(b",") + 1 == self.num_tokens

    @property
    def finished(self) -> bool:
        """Whether its last chunk was sent."""
        self._fold()
        return self._finished

    def rest_of(self, *, logprobs: int) -> Skip:
        """What is to be left out of the next worker's stream. logprobs: entries in it of tokens sent already."""
        self._fold()
        return Skip(
            text="".join(self._text),
            num_tokens=self.num_tokens,
            num_logprobs=logprobs,
            opened=self._opened,
            finished=self._finished,
            created=self.created,
        )

    def _fold(self) -> None:
        for event in self._events:
            for choice in _read_chunk(event[_DATA:]).choices:
                self._opened = True
                self._finished = self._finished or choice.finish_reason is not None
                self._text.append(choice.text or choice.delta.content or "")
        self._events.clear()
        self._size = 0
        if len(self._ids) > 1:
            self._ids = [b",".join(self._ids).replace(b" ", b",")]
        elif self._ids:
            self._ids[0] = self._ids[0].replace(b" ", b",")


@dataclass(slots=True, kw_only=True)
class Skip:
    """What is still to be left out of a stream.

    Attributes:
        opened: the chunk that opens a chat was sent.
        finished: the chunk that ends the choice was sent.
        created: what the chunks sent before say.
    """

    text: str
    num_tokens: int
    num_logprobs: int
    opened: bool
    finished: bool
    created: bytes

    @property
    def over(self) -> bool:
        """Whether all that follows is new."""
        return not (self.text or self.finished or self.num_tokens > 0 or self.num_logprobs > 0)

    def apply(self, event: bytes, num_ids: int) -> bytes:
        """What of an event is new; b"" for nothing. num_ids: of the tokens it brings.

        Raises:
            MismatchError: it does not begin with what is to be left out.
        """
        body = msgspec.json.decode(event[_DATA:])
        if not body["choices"]:
            return event
        (choice,) = body["choices"]
        opens = "role" in choice.get("delta", ())
        if self.finished or (opens and self.opened):
            return b""
        num_old = min(num_ids, self.num_tokens)
        self.num_tokens -= num_old
        text = self._cut_text(choice)
        self._cut_logprobs(choice)
        if choice.get("token_ids"):
            choice["token_ids"] = choice["token_ids"][num_old:]
        choice.pop("prompt_token_ids", None)
        ends = choice.get("finish_reason") is not None
        if ends and self.text:
            raise MismatchError("it ended before the text that the client has")
        if not (opens or ends or text or num_ids > num_old):
            return b""
        return b"data: " + _encode(body) + b"\n\n"

    def _cut_text(self, choice: dict[str, Any]) -> str:
        holder, name = (choice["delta"], "content") if "delta" in choice else (choice, "text")
        text: str = holder.get(name) or ""
        size = min(len(text), len(self.text))
        if text[:size] != self.text[:size]:
            raise MismatchError(f"{text[:size]!r} stands where the client has {self.text[:size]!r}")
        self.text = self.text[size:]
        if name in holder:
            holder[name] = text[size:]
        return text[size:]

    def _cut_logprobs(self, choice: dict[str, Any]) -> None:
        logprobs = choice.get("logprobs")
        if not logprobs or not self.num_logprobs:
            return
        lists = ("content",) if "content" in logprobs else ("text_offset", "token_logprobs", "tokens", "top_logprobs")
        size = min(self.num_logprobs, len(logprobs[lists[0]]))
        self.num_logprobs -= size
        for name in lists:
            logprobs[name] = logprobs[name][size:]
