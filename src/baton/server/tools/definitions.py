"""Tools of a request: OpenAI's `tools` and `tool_choice`, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from baton.core.errors import RequestError

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function that the model may call.

    Attributes:
        parameters: JSON schema of an object.
        function: as the request has it, for the chat template: no nulls, parameters always there.
    """

    name: str
    parameters: Mapping[str, Any]
    function: Mapping[str, Any]


class ChoiceMode(Enum):
    """What the model is to do with its tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """`name` is the function to call, for NAMED."""

    mode: ChoiceMode
    name: str = ""


def parse_tools(tools: object) -> tuple[Tool, ...]:
    """`tools` of a request body, decoded from JSON; null and an empty list are no tools.

    Raises:
        RequestError: param is "tools".
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestError("tools must be a list of objects", param="tools")
    return tuple(_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools))


def parse_tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    """`tool_choice` of a request body; null is "auto" with tools and "none" without.

    Raises:
        RequestError: param is "tool_choice".
    """
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return ToolChoice(mode=ChoiceMode.NONE)
    if not tools:
        raise RequestError("tool_choice needs tools: give some, or leave it out", param="tool_choice")
    if choice == "auto" or choice == "required":
        return ToolChoice(mode=ChoiceMode(choice))
    name = _named(choice)
    if name is None:
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    if all(tool.name != name for tool in tools):
        raise RequestError(f"tool_choice names {name!r}, which is not among tools", param="tool_choice")
    return ToolChoice(mode=ChoiceMode.NAMED, name=name)


def _named(choice: object) -> str | None:
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _tool(where: str, tool: object) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise RequestError(f'{where} must be an object of type "function"', param="tools")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be an object with a name", param="tools")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name must be 1 to 128 letters, digits or any of _ - . :, got {name!r}", param="tools"
        )
    for key, kind, words in (("description", str, "a string"), ("strict", bool, "true or false")):
        if not isinstance(function.get(key), (kind, type(None))):
            raise RequestError(f"{where}.function.{key} must be {words}", param="tools")
    parameters = _parameters(where, function.get("parameters"))
    shown = {key: value for key, value in function.items() if value is not None and key != "strict"}
    return Tool(name=name, parameters=parameters, function={**shown, "parameters": parameters})


def _parameters(where: str, schema: object) -> Mapping[str, Any]:
    """The schema, with what a missing part of it means."""
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise RequestError(f"{where}.function.parameters must be the JSON schema of an object", param="tools")
    return {"type": "object", **schema}
