"""The whole message, put together from the deltas that a stream would send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from baton.server.tools.deltas import ContentDelta, Delta
from baton.server.tools.parser import ToolParser


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """Content (None if there are only calls) and calls of one message."""

    content: str | None
    tool_calls: tuple[ToolCall, ...]


def assemble(deltas: Iterable[Delta]) -> ParsedMessage:
    """Join all deltas of one message."""
    content = ""
    calls: list[ToolCall] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.name is not None:
            assert delta.index == len(calls) and delta.id is not None
            calls.append(ToolCall(id=delta.id, name=delta.name, arguments=delta.arguments))
        else:
            call = calls[delta.index]
            calls[delta.index] = replace(call, arguments=call.arguments + delta.arguments)
    return ParsedMessage(content=None if calls and not content else content, tool_calls=tuple(calls))


def parse_message(parser: ToolParser, text: str) -> ParsedMessage:
    """Content and calls of a complete text; the parser must be new."""
    return assemble([*parser.push(text), *parser.finish()])
