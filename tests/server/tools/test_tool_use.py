"""What tools mean for the prompt, the grammar and the parser. xgrammar says what a grammar accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.core.errors import RequestError
from baton.server.tools.choice import ToolUse, parse_tool_use
from baton.server.tools.message import parse_message
from baton.server.tools.parser import detect_tool_format

NODE = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}, "required": ["n"]}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "walk",
            "parameters": {
                "type": "object",
                # "default" is a property here, not the keyword.
                "properties": {"from": {"$ref": "#/$defs/Node"}, "default": {"$ref": "#/$defs/Node"}},
                "required": ["from"],
                "$defs": {"Node": NODE},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "walk"}}


def use(choice: object = None, *, format: str | None = "hermes", parallel: bool | None = None) -> ToolUse:
    return parse_tool_use(tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, format=format)


def accepts(tools: ToolUse, text: str) -> bool:
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.testing import _is_grammar_accept_string

    assert tools.grammar is not None
    return bool(_is_grammar_accept_string(xgrammar.Grammar.from_json_schema(tools.grammar.source), text))


def test_the_template_sees_the_tools_unless_none_may_be_called() -> None:
    shown = use().template
    assert shown is not None
    assert shown[0] == TOOLS[0]
    assert [tool["function"]["name"] for tool in shown] == ["walk", "now"]
    assert use("none").template is None
    assert parse_tool_use(tools=None, format="hermes").template is None


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_free_model_has_no_grammar(choice: object) -> None:
    assert use(choice).grammar is None


@pytest.mark.torch
@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('[{"name": "walk", "parameters": {"from": {"n": 1, "next": {"n": 2}}}}]', True),
        ('[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]', True),
        ('[{"name": "walk", "parameters": {"from": {"n": 1}, "default": {"n": 2}}}]', True),
        ('[{"name": "walk", "parameters": {"from": {"n": 1}, "default": {"n": "x"}}}]', False),
        ('[{"name": "walk", "parameters": {}}]', False),
        ('[{"name": "nobody", "parameters": {}}]', False),
        ("[]", False),
        ("Hello", False),
    ],
)
def test_required_forces_a_list_of_valid_calls(text: str, accepted: bool) -> None:
    assert accepts(use("required"), text) is accepted


@pytest.mark.torch
def test_without_parallel_calls_one_is_forced() -> None:
    one, two = (
        '[{"name": "now", "parameters": {}}]',
        '[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]',
    )
    assert accepts(use("required", parallel=False), one)
    assert not accepts(use("required", parallel=False), two)


@pytest.mark.torch
def test_named_forces_the_arguments() -> None:
    assert accepts(use(NAMED), '{"from": {"n": 1}}')
    assert not accepts(use(NAMED), "{}")


@pytest.mark.parametrize("format", ["hermes", None])
def test_forced_texts_are_parsed_whatever_the_models_format(format: str | None) -> None:
    parser = use("required", format=format).parser(lambda: "id")
    assert parser is not None
    message = parse_message(
        parser, '[{"name": "now", "parameters": {}}, {"name": "walk", "parameters": {"from": {"n": 1}}}]'
    )
    assert message.content is None
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("now", "{}"),
        ("walk", '{"from": {"n": 1}}'),
    ]
    parser = use(NAMED, format=format).parser(lambda: "id")
    assert parser is not None
    message = parse_message(parser, '{"from": {"n": 1}}')
    assert message.content is None
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("id", "walk", '{"from": {"n": 1}}')
    ]


def test_when_text_is_plain_content() -> None:
    assert use("none").parser() is None
    assert use("auto", format=None).parser() is None
    assert parse_tool_use(tools=None, format="hermes").parser() is None
    assert use("auto").parser() is not None


def test_ids_are_fresh() -> None:
    text = '<tool_call>{"name": "now"}</tool_call>' * 2
    parsers = [use().parser(), use().parser()]
    ids = [call.id for parser in parsers if parser for call in parse_message(parser, text).tool_calls]
    assert len(set(ids)) == 4
    assert all(id.startswith("call_") and len(id) == 29 for id in ids)


@pytest.mark.parametrize(
    ("choice", "reason", "num_calls", "expected"),
    [
        ("auto", "stop", 1, "tool_calls"),
        ("auto", "stop", 0, "stop"),
        ("auto", "length", 1, "length"),
        ("required", "stop", 2, "tool_calls"),
        (NAMED, "stop", 1, "stop"),
    ],
)
def test_finish_reason(choice: object, reason: str, num_calls: int, expected: str) -> None:
    assert use(choice).finish_reason(reason, num_calls) == expected


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "deep"}}])
def test_a_schema_too_deep_to_read_is_refused(choice: object) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    tools = [{"type": "function", "function": {"name": "deep", "parameters": schema}}]
    deep = parse_tool_use(tools=tools, tool_choice=choice, format=None)
    with pytest.raises(RequestError) as error:
        _ = deep.grammar
    assert error.value.param == "tools"
    while schema:  # freed from the outside in: the interpreter's own recursion has limits too
        schema = schema.popitem()[1]


def test_grammar_is_a_schema() -> None:
    grammar = use("required").grammar
    assert grammar is not None
    assert json.loads(grammar.source)["minItems"] == 1


@pytest.mark.parametrize(
    ("template", "architecture", "format"),
    [
        ('... <tool_call>\\n{"name": <function-name>, ...}\\n</tool_call>', "Qwen2ForCausalLM", "hermes"),
        ("<tool_call>\\n<function=example_function_name>", "Qwen3MoeForCausalLM", "qwen3_coder"),
        ("{{- '<|python_tag|>' + tool_call.name }}", "LlamaForCausalLM", "llama3_json"),
        (
            '{"name": function name, "parameters": dictionary of argument name and its value}',
            "LlamaForCausalLM",
            "llama3_json",
        ),
        ("{{ messages }}", "Qwen2ForCausalLM", None),
        ("[TOOL_CALLS]", "MistralForCausalLM", None),
        (None, "Qwen3ForCausalLM", "hermes"),
        (None, "qwen2", "hermes"),
        (None, "LlamaForCausalLM", None),
    ],
)
def test_format_of_a_model(template: str | None, architecture: str, format: str | None) -> None:
    assert detect_tool_format(template, architecture) == format


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_schema_too_long_to_compile_is_refused(choice: object) -> None:
    parameters = {"type": "object", "description": "a" * 262_144}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(RequestError, match="at most 262144 characters") as error:
        _ = parse_tool_use(tools=tools, tool_choice=choice, format=None).grammar
    assert error.value.param == "tools"
    assert parse_tool_use(tools=tools, tool_choice="auto", format=None).grammar is None
