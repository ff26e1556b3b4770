"""Requests from files: traces, ShareGPT-style conversations, prompts of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from baton.bench.asks import Ask, Messages, asked
from baton.core.errors import ConfigError

_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=1)]


class TraceLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a trace.

    Attributes:
        time_s: when it arrived; only differences count.
        prefix_id: requests with the same one begin with the same `prefix_tokens` tokens (part of `input_tokens`).
    """

    time_s: float
    input_tokens: _Count
    output_tokens: _Count
    prefix_id: int | str | None = None
    prefix_tokens: int = 0


class PromptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One's own prompt: text or a conversation."""

    prompt: str | None = None
    messages: Messages | None = None
    output_tokens: _Count | None = None


class _Turn(msgspec.Struct, frozen=True):
    value: str
    from_: str = msgspec.field(name="from", default="")


class Conversation(msgspec.Struct, frozen=True):
    """As in ShareGPT."""

    conversations: list[_Turn]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and the answer that was given to it."""

    prompt: str
    answer: str


def read_trace(path: Path) -> list[TraceLine]:
    """The lines of a trace, by time.

    Raises:
        ConfigError: the file cannot be read; names the line.
    """
    lines = sorted(read_lines(path, TraceLine), key=lambda line: line.time_s)
    for line in lines:
        if not 0 <= line.prefix_tokens <= line.input_tokens:
            raise ConfigError(f"{path}: prefix_tokens must be 0 to input_tokens, got {line.prefix_tokens}")
    return lines


def trace_asks(lines: Sequence[TraceLine], ids: tuple[int, int], rng: np.random.Generator) -> list[Ask]:
    """Random token ids, from ids[0] up to but without ids[1], with the lengths and shared prefixes of a trace."""
    prefixes: dict[int | str, list[int]] = {}

    def draw(count: int) -> list[int]:
        drawn: list[int] = rng.integers(*ids, size=count).tolist()
        return drawn

    asks = []
    for line in lines:
        prefix: list[int] = []
        if line.prefix_id is not None:
            known = prefixes.setdefault(line.prefix_id, [])
            known += draw(max(0, line.prefix_tokens - len(known)))
            prefix = known[: line.prefix_tokens]
        asks.append(asked([*prefix, *draw(line.input_tokens - len(prefix))], line.output_tokens))
    return asks


def read_prompts(path: Path, output_tokens: int) -> list[Ask]:
    """One's own prompts.

    Args:
        output_tokens: where a line says nothing.

    Raises:
        ConfigError: the file cannot be read, or a line has neither or both of prompt and messages.
    """
    asks = []
    for number, line in enumerate(read_lines(path, PromptLine), 1):
        if (line.prompt is None) == (line.messages is None):
            raise ConfigError(f"{path}:{number}: give either prompt or messages")
        prompt = line.messages if line.prompt is None else line.prompt
        assert prompt is not None
        asks.append(Ask(prompt=prompt, output_tokens=line.output_tokens or output_tokens))
    return asks


def read_conversations(path: Path) -> list[Pair]:
    """The first two turns of each conversation that has them and whose first is not empty (JSON list, or JSONL)."""
    raw = _read(path)
    try:
        if raw.lstrip()[:1] == b"[":
            found = msgspec.json.decode(raw, type=list[Conversation])
        else:
            found = list(read_lines(path, Conversation))
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error
    turns = [each.conversations for each in found if len(each.conversations) >= 2]
    return [Pair(prompt=first.value, answer=second.value) for first, second, *_ in turns if first.value.strip()]


def choose(items: Sequence[_T], count: int, rng: np.random.Generator, *, path: Path) -> list[_T]:
    """`count` of them in random order; each again only when all have been taken."""
    if not items:
        raise ConfigError(f"{path} has nothing to ask")
    chosen: list[_T] = []
    while len(chosen) < count:
        chosen += [items[index] for index in rng.permutation(len(items))]
    return chosen[:count]


def read_lines(path: Path, kind: type[_T]) -> Iterator[_T]:
    """The values of a JSONL file; empty lines do not count.

    Raises:
        ConfigError: it cannot be read; names the line.
    """
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}:{number}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
