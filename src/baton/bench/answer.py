"""Reads one streamed answer, cheaply: only what is measured is decoded."""

from __future__ import annotations

from typing import Any

import msgspec

_DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None

    @property
    def opens_only(self) -> bool:
        """Whether it says who speaks, and nothing yet."""
        delta = self.delta
        return delta is not None and delta.role is not None and not (delta.content or delta.reasoning_content)

    @property
    def shown(self) -> str:
        if self.delta is not None:
            return self.delta.content or self.delta.reasoning_content or ""
        return self.text or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def _words(error: Any) -> str:
    """Of an error event, OpenAI's or another."""
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


class Answer:
    """One answer as it comes.

    A piece is an event with a choice; a chat's first event, which only names the speaker, is none: it comes together
    with the first token's (`vllm bench serve` counts it, and so sees one more gap, of nearly 0).

    Attributes:
        chunk_s: when each piece came, as `feed` was told.
        error: what went wrong; "" so far.
    """

    __slots__ = ("_rest", "_texts", "chunk_s", "ended", "error", "input_tokens", "output_tokens", "token_ids")

    def __init__(self) -> None:
        self._rest = b""
        self._texts: list[str] = []
        self.chunk_s: list[float] = []
        self.token_ids: list[int] = []
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False
        self.error = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)

    def feed(self, data: bytes, now_s: float) -> None:
        """Bytes that came at `now_s`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def close(self) -> None:
        """No more comes. An answer without an end, or without a piece, did not go well."""
        if not self.error and not self.ended:
            self.error = "the stream ended without [DONE]"
        elif not self.error and not self.chunk_s:
            self.error = "no token came"

    def _event(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            self.ended = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.error = self.error or f"an event that is no chunk: {error}"
            return
        if chunk.error is not None:
            self.error = self.error or _words(chunk.error)
        if chunk.usage is not None:
            self.input_tokens, self.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        if chunk.choices and not chunk.choices[0].opens_only:
            choice = chunk.choices[0]
            self.chunk_s.append(now_s)
            self._texts.append(choice.shown)
            self.token_ids += choice.token_ids or ()
