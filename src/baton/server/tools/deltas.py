"""What a tool parser finds, in order: pieces of content and pieces of calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentDelta:
    """Further text of the message, never empty."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a call, as OpenAI streams it.

    Attributes:
        index: which call of the message, from 0.
        id, name: on the first delta of a call (whose arguments are empty), and only there.
        arguments: further text of the arguments; the pieces of a call join to its JSON.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Delta = ContentDelta | ToolCallDelta
MakeId = Callable[[], str]


def random_call_id() -> str:
    """A fresh id for one call."""
    return f"call_{uuid.uuid4().hex[:24]}"


class DeltaWriter:
    """Collects the deltas of one message; counts the calls.

    White space beside a call belongs to the format, not to the message: it is dropped before a call, and after one
    unless content stands on both sides. A message without calls keeps every character.
    """

    def __init__(self, make_id: MakeId) -> None:
        self._make_id = make_id
        self._deltas: list[Delta] = []
        self._num_calls = 0
        self._space = ""  # white space not yet known to be content
        self._shown = False
        self._after_call = False

    def content(self, text: str) -> None:
        """Add text of the message."""
        text = self._space + text
        kept = text.rstrip(SPACE)
        self._space = text[len(kept) :]
        if not kept:
            return
        if self._after_call and not self._shown:
            kept = kept.lstrip(SPACE)
        self._shown, self._after_call = True, False
        self._deltas.append(ContentDelta(text=kept))

    def call(self, name: str) -> None:
        """Begin a call."""
        self._space, self._after_call = "", True
        self._deltas.append(ToolCallDelta(index=self._num_calls, id=self._make_id(), name=name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        assert self._num_calls
        if text:
            self._deltas.append(ToolCallDelta(index=self._num_calls - 1, arguments=text))

    def finish(self) -> None:
        """The text has ended: what white space is left is content, if no call stands before it."""
        if self._space and not self._after_call:
            self._deltas.append(ContentDelta(text=self._space))
        self._space = ""

    def take(self) -> list[Delta]:
        """The deltas since the last call of this, neighbours of the same kind joined."""
        joined: list[Delta] = []
        for delta in self._deltas:
            last = joined[-1] if joined else None
            if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
                joined[-1] = ContentDelta(text=last.text + delta.text)
            elif (
                isinstance(delta, ToolCallDelta)
                and isinstance(last, ToolCallDelta)
                and delta.name is None
                and last.name is None
            ):
                joined[-1] = ToolCallDelta(index=last.index, arguments=last.arguments + delta.arguments)
            else:
                joined.append(delta)
        self._deltas = []
        return joined
