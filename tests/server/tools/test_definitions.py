"""`tools` and `tool_choice` of a request: what is accepted, and which field an error names."""

from __future__ import annotations

import pytest

from baton.core.errors import RequestError
from baton.server.tools.definitions import ChoiceMode, ToolChoice, parse_tool_choice, parse_tools

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}


def test_a_tool_and_what_its_missing_parts_mean() -> None:
    (tool,) = parse_tools([{"type": "function", "function": {"name": "now", "description": None, "strict": True}}])
    assert tool.name == "now"
    assert tool.parameters == {"type": "object", "properties": {}}
    assert tool.function == {"name": "now", "parameters": {"type": "object", "properties": {}}}
    (tool,) = parse_tools([TOOL])
    assert tool.parameters == {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools(tools: object) -> None:
    assert parse_tools(tools) == ()


@pytest.mark.parametrize(
    "tools",
    [
        "f",
        {"type": "function"},
        ["f"],
        [{"function": {"name": "f"}}],
        [{"type": "retrieval"}],
        [{"type": "function"}],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "a>"}}],
        [{"type": "function", "function": {"name": "x" * 129}}],
        [{"type": "function", "function": {"name": "f", "description": 1}}],
        [{"type": "function", "function": {"name": "f", "strict": "yes"}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}],
    ],
)
def test_malformed_tools_are_refused(tools: object) -> None:
    with pytest.raises(RequestError) as error:
        parse_tools(tools)
    assert error.value.param == "tools"
    assert "\n" not in str(error.value)


def test_choices() -> None:
    tools = parse_tools([TOOL])
    assert parse_tool_choice(None, ()) == ToolChoice(mode=ChoiceMode.NONE)
    assert parse_tool_choice("none", ()) == ToolChoice(mode=ChoiceMode.NONE)
    assert parse_tool_choice(None, tools) == ToolChoice(mode=ChoiceMode.AUTO)
    assert parse_tool_choice("auto", tools) == ToolChoice(mode=ChoiceMode.AUTO)
    assert parse_tool_choice("required", tools) == ToolChoice(mode=ChoiceMode.REQUIRED)
    named = parse_tool_choice({"type": "function", "function": {"name": "f"}}, tools)
    assert named == ToolChoice(mode=ChoiceMode.NAMED, name="f")


@pytest.mark.parametrize(
    ("choice", "has_tools"),
    [
        ("auto", False),
        ("required", False),
        ({"type": "function", "function": {"name": "f"}}, False),
        ("any", True),
        ("named", True),
        (1, True),
        ([], True),
        ({}, True),
        ({"type": "tool", "function": {"name": "f"}}, True),
        ({"type": "function", "function": {"name": "g"}}, True),
        ({"type": "function", "function": {"name": None}}, True),
    ],
)
def test_bad_choices_are_refused(choice: object, has_tools: bool) -> None:
    with pytest.raises(RequestError) as error:
        parse_tool_choice(choice, parse_tools([TOOL] if has_tools else None))
    assert error.value.param == "tool_choice"
