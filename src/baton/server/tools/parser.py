"""Tool parsers by name, and which one a model needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from baton.server.tools.definitions import Tool
from baton.server.tools.deltas import Delta, MakeId, ToolCallDelta, random_call_id
from baton.server.tools.hermes import HermesParser
from baton.server.tools.llama3_json import Llama3JsonParser
from baton.server.tools.qwen3_coder import Qwen3CoderParser


class ToolParser(Protocol):
    """Finds the calls in the text of one message.

    Laws: the joined deltas depend on the text alone, not on how it is cut. No part of a call's syntax is content. A
    text without calls is content, character by character; what looks like a call and is none is content too.
    """

    def push(self, text: str) -> list[Delta]:
        """Take further text; returns what is certain now and was not before."""

    def finish(self) -> list[Delta]:
        """The rest, after the last text. Arguments that were cut off stay cut off."""


_Make = Callable[[Sequence[Tool], MakeId], ToolParser]
_PARSERS: dict[str, _Make] = {
    "hermes": lambda tools, make_id: HermesParser(make_id),
    "llama3_json": lambda tools, make_id: Llama3JsonParser({tool.name for tool in tools} or None, make_id),
    "qwen3_coder": lambda tools, make_id: Qwen3CoderParser({tool.name: tool.parameters for tool in tools}, make_id),
}
TOOL_PARSERS = tuple(_PARSERS)


def make_tool_parser(name: str, tools: Sequence[Tool] = (), make_id: MakeId = random_call_id) -> ToolParser:
    """A parser for one message.

    Args:
        name: one of TOOL_PARSERS.
        tools: what the request defines (llama3_json: only these can be called; qwen3_coder: types of arguments).
    """
    return _PARSERS[name](tools, make_id)


def detect_tool_format(chat_template: str | None, architecture: str) -> str | None:
    """Name of the parser for a model; None if it is not known to call tools.

    The template decides where it shows calls. `architecture` as in the model's config, where there is no template.
    """
    template = chat_template or ""
    if "<function=" in template:
        return "qwen3_coder"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or '"parameters": dictionary of' in template:
        return "llama3_json"
    return "hermes" if chat_template is None and architecture.lower().startswith(("qwen2", "qwen3")) else None


class FirstCallOnly:
    """A ToolParser for parallel_tool_calls=false: calls after the first are dropped."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Delta]:
        return _first_call(self._parser.push(text))

    def finish(self) -> list[Delta]:
        return _first_call(self._parser.finish())


def _first_call(deltas: list[Delta]) -> list[Delta]:
    return [delta for delta in deltas if not isinstance(delta, ToolCallDelta) or delta.index == 0]
