"""What a request's tools mean for prompt, sampling and parsing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.core.errors import RequestError
from baton.core.sampling import Grammar, GrammarKind
from baton.server.response_format import bounded_grammar
from baton.server.tools.definitions import ChoiceMode, Tool, ToolChoice, parse_tool_choice, parse_tools
from baton.server.tools.deltas import MakeId, random_call_id
from baton.server.tools.forced import ForcedCallParser
from baton.server.tools.llama3_json import Llama3JsonParser
from baton.server.tools.parser import FirstCallOnly, ToolParser, make_tool_parser

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NOT_SCHEMAS = ("const", "enum", "default", "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Tools of one request, ready to use.

    Attributes:
        format: name of the model's tool parser; None: its calls cannot be told from content.
        parallel: more than one call a message is allowed.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice
    format: str | None
    parallel: bool = True

    @property
    def template(self) -> list[dict[str, Any]] | None:
        """For the chat template."""
        return template_tools(self.tools, self.choice)

    @property
    def grammar(self) -> Grammar | None:
        """Constraint on the text, which replaces one by `response_format`; None: free."""
        return tool_grammar(self.tools, self.choice, parallel=self.parallel)

    def parser(self, make_id: MakeId = random_call_id) -> ToolParser | None:
        """A parser for one choice of the response; None: the text is content."""
        parser: ToolParser
        match self.choice.mode:
            case ChoiceMode.NAMED:
                return ForcedCallParser(self.choice.name, make_id)
            case ChoiceMode.REQUIRED:  # whatever the model's own format, see `tool_grammar`
                parser = Llama3JsonParser({tool.name for tool in self.tools}, make_id)
            case ChoiceMode.AUTO if self.format is not None:
                parser = make_tool_parser(self.format, self.tools, make_id)
            case _:
                return None
        return parser if self.parallel else FirstCallOnly(parser)

    def finish_reason(self, reason: str, num_calls: int) -> str:
        """OpenAI's: "tool_calls" instead of "stop" when the model chose to call; "stop" for a named function."""
        chosen = num_calls > 0 and self.choice.mode is not ChoiceMode.NAMED
        return "tool_calls" if chosen and reason == "stop" else reason


def parse_tool_use(
    *, tools: object, tool_choice: object = None, parallel_tool_calls: bool | None = None, format: str | None
) -> ToolUse:
    """Check the fields of a request body (decoded from JSON) that concern tools.

    Raises:
        RequestError: param is "tools" or "tool_choice".
    """
    parsed = parse_tools(tools)
    choice = parse_tool_choice(tool_choice, parsed)
    return ToolUse(tools=parsed, choice=choice, format=format, parallel=parallel_tool_calls is not False)


def template_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[dict[str, Any]] | None:
    """What the chat template sees: all tools, unless none may be called."""
    if not tools or choice.mode is ChoiceMode.NONE:
        return None
    return [{"type": "function", "function": dict(tool.function)} for tool in tools]


def tool_grammar(tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool = True) -> Grammar | None:
    """Constraint that makes sure of a call; None where the model is free.

    Named: the text is the JSON of the arguments. Required: a JSON list of {"name", "parameters"}, at least one and,
    without `parallel`, at most one. Both are JSON whatever format the model was trained on: any model can be held to
    them.

    Raises:
        RequestError: a schema is nested too deeply or too long; param is "tools".
    """
    try:
        return _tool_grammar(tools, choice, parallel)
    except RecursionError as error:
        raise RequestError("tools is nested too deeply", param="tools") from error


def _tool_grammar(tools: Sequence[Tool], choice: ToolChoice, parallel: bool) -> Grammar | None:
    if choice.mode is ChoiceMode.NAMED:
        named = next(tool for tool in tools if tool.name == choice.name)
        return _schema_grammar(named.parameters)
    if choice.mode is not ChoiceMode.REQUIRED:
        return None
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call_schema(i, tool) for i, tool in enumerate(tools)]},
        "$defs": {f"tool_{i}": _moved(tool.parameters, f"#/$defs/tool_{i}") for i, tool in enumerate(tools)},
    }
    if not parallel:
        schema["maxItems"] = 1
    return _schema_grammar(schema)


def _call_schema(i: int, tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/tool_{i}"}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose root becomes `place` of another: local references follow."""
    if isinstance(schema, Mapping):
        return {key: _moved_entry(key, value, place) for key, value in schema.items()}
    return [_moved(entry, place) for entry in schema] if isinstance(schema, (list, tuple)) else schema


def _moved_entry(key: str, value: Any, place: str) -> Any:
    if key == "$ref" and isinstance(value, str):
        return place + value[1:] if value.startswith("#") else value
    if key in _SCHEMA_MAPS and isinstance(value, Mapping):
        return {name: _moved(entry, place) for name, entry in value.items()}
    return value if key in _NOT_SCHEMAS else _moved(value, place)


def _schema_grammar(schema: Mapping[str, Any]) -> Grammar:
    return bounded_grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), "tools", "the schema of tools")
