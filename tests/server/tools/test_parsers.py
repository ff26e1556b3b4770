"""Tool parsers: samples of every format with the calls a reader sees in them, and the laws that hold for any text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.server.tools.definitions import Tool, parse_tools
from baton.server.tools.deltas import ContentDelta, Delta, ToolCallDelta
from baton.server.tools.message import ParsedMessage, assemble, parse_message
from baton.server.tools.parser import TOOL_PARSERS, FirstCallOnly, ToolParser, make_tool_parser

pytestmark = pytest.mark.slow

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "zip": {"type": ["string", "null"]},
        "where": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}
TOOLS = parse_tools(
    [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("weather", "f", "g")]
)


def ids() -> Callable[[], str]:
    """call_0, call_1, ..."""
    count = itertools.count()
    return lambda: f"call_{next(count)}"


def parser(name: str, tools: tuple[Tool, ...] = TOOLS) -> ToolParser:
    return make_tool_parser(name, tools, ids())


def stream(one: ToolParser, pieces: list[str]) -> list[Delta]:
    return [delta for piece in pieces for delta in one.push(piece)] + one.finish()


def cuts(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def seen(message: ParsedMessage) -> tuple[str | None, list[tuple[str, str]]]:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


# (format, text, content, [(name, arguments text)])
Sample = tuple[str, str, str | None, list[tuple[str, str]]]
WELL_FORMED: list[Sample] = [
    ("hermes", "Just text, 1 < 2 <tool", "Just text, 1 < 2 <tool", []),
    ("hermes", "  \n", "  \n", []),
    ("hermes", hermes('{"name": "weather", "arguments": {"city": "Paris"}}'), None, [("weather", '{"city": "Paris"}')]),
    (
        "hermes",
        "Let me look.\n\n" + hermes('{"name": "f", "arguments": {"a": 1}}') + "\n" + hermes('{"name": "g"}'),
        "Let me look.",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "hermes",  # tags and braces inside strings, escapes, nesting, unicode
        hermes(
            '{"name": "f", "arguments": {"a": "</tool_call>{\\"\\\\", "b": [{"c": {}}, "\\u00e9\u6771 \U0001f600"]}}'
        ),
        None,
        [("f", '{"a": "</tool_call>{\\"\\\\", "b": [{"c": {}}, "\\u00e9\u6771 \U0001f600"]}')],
    ),
    ("hermes", hermes('{"arguments": {"a": {}}, "name": "f"}'), None, [("f", '{"a": {}}')]),
    ("hermes", hermes('{"name": "f", "arguments": "{\\"a\\": 1}"}'), None, [("f", '{"a": 1}')]),
    ("hermes", hermes('{"name": "f", "arguments": null, "id": 7}'), None, [("f", "{}")]),
    ("hermes", "a " + hermes('{"name": "f"}') + "\n b", "a\n b", [("f", "{}")]),
    ("hermes", hermes('{"name": "f"}') + "\nb", "b", [("f", "{}")]),
    ("hermes", hermes('[{"name": "f"}, {"name": "g", "arguments": {}}]'), None, [("f", "{}"), ("g", "{}")]),
    ("llama3_json", '{"name": "f", "parameters": {"a": "x;y"}}', None, [("f", '{"a": "x;y"}')]),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', None, [("f", "{}")]),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"a": 2}}',
        None,
        [("f", '{"a": 1}'), ("g", '{"a": 2}')],
    ),
    (
        "llama3_json",
        '[{"name": "f", "parameters": {}},\n {"name": "g", "parameters": {}}]\n',
        None,
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "llama3_json",
        'Sure:\n\n[{"name": "f", "parameters": {"b": [1]}}]\nDone; [1].',
        "Sure:\nDone; [1].",
        [("f", '{"b": [1]}')],
    ),
    ("llama3_json", 'I call <|python_tag|>{"name": "f", "parameters": {}}', "I call", [("f", "{}")]),
    ("llama3_json", '{"name": "f", "parameters": {}}; or [x]', "; or [x]", [("f", "{}")]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", None, [("f", "{}")]),
    (
        "qwen3_coder",  # one line end beside each tag belongs to the format
        'Look:\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n "x"\n\n</parameter>\n<parameter=days>\n3\n'
        "</parameter>\n</function>\n</tool_call>\n<tool_call><function=g></function></tool_call>",
        "Look:",
        [("weather", '{"city": "Paris\\n \\"x\\"\\n", "days": 3}'), ("g", "{}")],
    ),
    (
        "qwen3_coder",
        '<function=weather><parameter=zip>null</parameter><parameter=where>\n{"a": [1]}\n</parameter></function>!',
        "!",
        [("weather", '{"zip": null, "where": {"a": [1]}}')],
    ),
    (
        "qwen3_coder",  # no JSON: a string; unknown to the schema: a string; Python's word: JSON's
        "<function=weather><parameter=days>three</parameter><parameter=new>5</parameter><parameter=where>None</parameter>"
        "</function>",
        None,
        [("weather", '{"days": "three", "new": "5", "where": null}')],
    ),
]
MALFORMED: list[Sample] = [
    ("hermes", hermes("not JSON"), hermes("not JSON"), []),
    ("hermes", hermes('{"arguments": {}}'), hermes('{"arguments": {}}'), []),
    ("hermes", hermes('{"name": 7, "arguments": {}}'), hermes('{"name": 7, "arguments": {}}'), []),
    ("hermes", hermes('{"name": "\\ud800"}'), hermes('{"name": "\\ud800"}'), []),
    ("hermes", hermes('{"name": "f", "arguments": 5}'), hermes('{"name": "f", "arguments": 5}'), []),
    ("hermes", hermes('{"name": "f", "arguments": "x"}'), hermes('{"name": "f", "arguments": "x"}'), []),
    ("hermes", 'a <tool_call>{"name": "f', 'a <tool_call>{"name": "f', []),
    ("hermes", '<tool_call>{"name" <tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name"', [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', None, [("f", '{"a": "b')]),  # cut off
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool', None, [("f", '{"a": 1}')]),
    ("hermes", hermes('{"name": "f", "arguments": {"a": 1}'), None, [("f", '{"a": 1}')]),  # a brace too few
    ("hermes", hermes('{"name": "f", "arguments": {"a": 1}}}'), None, [("f", '{"a": 1}')]),  # a brace too many
    ("hermes", hermes('{"name": "f", "arguments": {"a": True}}') + " x", "x", [("f", '{"a": True}')]),
    ("hermes", hermes('{"name": "f", "arguments": {"a": 1}} junk'), "junk\n", [("f", '{"a": 1}')]),
    ("llama3_json", '{"name": "nobody", "parameters": {}}', '{"name": "nobody", "parameters": {}}', []),
    ("llama3_json", '{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    ("llama3_json", '[1, 2]\n{"a', '[1, 2]\n{"a', []),
    ("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("llama3_json", 'say {"name": "f", "parameters": {}}', 'say {"name": "f", "parameters": {}}', []),
    ("llama3_json", '{"name": "f", "parameters": {"a": True}}', None, [("f", '{"a": True}')]),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}}', None, [("f", '{"a": 1}')]),
    ("qwen3_coder", "<tool_call>x</tool_call>", "<tool_call>x</tool_call>", []),
    ("qwen3_coder", "<function=>", "<function=>", []),
    ("qwen3_coder", "<function=f\n>", "<function=f\n>", []),
    ("qwen3_coder", "<function=f><parameter=city>Pa", None, [("f", '{"city": "Pa')]),
    ("qwen3_coder", "<tool_call><function=f> junk</function></tool_call>", "junk", [("f", "{}")]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), WELL_FORMED + MALFORMED)
def test_samples_whole_and_character_by_character(
    name: str, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    whole = parse_message(parser(name), text)
    assert seen(whole) == (content, calls)
    assert [call.id for call in whole.tool_calls] == [f"call_{i}" for i in range(len(calls))]
    assert assemble(stream(parser(name), list(text))) == whole


@pytest.mark.parametrize(("name", "text"), [sample[:2] for sample in WELL_FORMED])
def test_arguments_of_well_formed_calls_are_json(name: str, text: str) -> None:
    assert all(isinstance(json.loads(call.arguments), dict) for call in parse_message(parser(name), text).tool_calls)


TEXTS = st.sampled_from([sample[:2] for sample in WELL_FORMED + MALFORMED])
# Fragments of every format in any order: mostly malformed.
FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<tool_", "<|python_tag|>", "<|py", "<function=f>", "<function=", "</function>"),
    *("<parameter=city>", "<parameter=", "</parameter>", '{"name": "f", "arguments": ', '{"name": "f", "parameters": '),
    *('{"name": "no", "parameters": ', '{"arguments": ', ', "name": "f"', '"', "\\", "{", "}", "[", "]", ",", ";", ":"),
    *('{"a": "b"}', "{}", "1", "true", "\n", " ", "x", "\u6771", "<", ">", '"name"'),
]
SOUP = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
PLACES = st.lists(st.integers(0, 400), max_size=12)


@given(sample=TEXTS, places=PLACES)
def test_any_cut_of_a_sample_gives_the_same(sample: tuple[str, str], places: list[int]) -> None:
    name, text = sample
    assert assemble(stream(parser(name), cuts(text, places))) == parse_message(parser(name), text)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=SOUP, places=PLACES)
def test_any_cut_of_any_text_gives_the_same(name: str, text: str, places: list[int]) -> None:
    whole = parse_message(parser(name), text)
    assert assemble(stream(parser(name), cuts(text, places))) == whole
    assert assemble(stream(parser(name), list(text))) == whole


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=SOUP)
def test_a_message_without_calls_is_its_text(name: str, text: str) -> None:
    message = parse_message(parser(name), text)
    if not message.tool_calls:
        assert message.content == text


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=SOUP, places=PLACES)
def test_deltas_have_the_shape_of_openai_streams(name: str, text: str, places: list[int]) -> None:
    begun = 0
    for delta in stream(parser(name), cuts(text, places)):
        if isinstance(delta, ContentDelta):
            assert delta.text
        elif delta.name is not None:
            assert (delta.index, delta.id, delta.arguments) == (begun, f"call_{begun}", "")
            begun += 1
        else:
            assert delta.index == begun - 1 and delta.arguments and delta.id is None


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["</tool_call>", "<tool_call>", "};{", "<|python_tag|>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(st.text(), JSON_VALUES, max_size=3)), min_size=1
)
WORDS = st.sampled_from(["", "I look.", "a {b} c", "2 < 3"])


@given(calls=CALLS, words=WORDS, places=PLACES, ascii_only=st.booleans())
def test_any_hermes_calls_come_back(
    calls: list[tuple[str, dict[str, Any]]], words: str, places: list[int], ascii_only: bool
) -> None:
    objects = [json.dumps({"name": n, "arguments": a}, ensure_ascii=ascii_only) for n, a in calls]
    text = words + "\n" + "\n".join(map(hermes, objects))
    message = assemble(stream(parser("hermes"), cuts(text, places)))
    assert message.content == (words or None)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


@given(calls=CALLS, join=st.sampled_from(["; ", ";", ",", "\n"]), places=PLACES)
def test_any_llama_calls_come_back(calls: list[tuple[str, dict[str, Any]]], join: str, places: list[int]) -> None:
    text = join.join(json.dumps({"name": n, "parameters": a}) for n, a in calls)
    message = assemble(stream(parser("llama3_json"), cuts(text, places)))
    assert message.content is None
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


def test_arguments_stream_before_the_call_is_complete() -> None:
    one = parser("hermes")
    assert one.push('Hi <tool_call>\n{"name": "f", "arguments"') == [ContentDelta(text="Hi")]
    assert one.push(': {"a": "b') == [
        ToolCallDelta(index=0, id="call_0", name="f"),
        ToolCallDelta(index=0, arguments='{"a": "b'),
    ]
    assert one.push('c"}}') == [ToolCallDelta(index=0, arguments='c"}')]
    assert one.push("\n</tool_call>") == []
    assert one.finish() == []


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_content_is_not_held_back(name: str) -> None:
    """Only white space at the end and what may begin a tag wait for the next piece."""
    one = parser(name)
    assert one.push("Hello wor") == [ContentDelta(text="Hello wor")]
    assert one.push("ld. <") == [ContentDelta(text="ld.")]
    assert one.push("b>") == [ContentDelta(text=" <b>")]


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    text = hermes('{"name": "f"}') + hermes('{"name": "g"}') + "end"
    message = parse_message(FirstCallOnly(parser("hermes")), text)
    assert seen(message) == ("end", [("f", "{}")])


def test_llama_without_tools_takes_any_name() -> None:
    assert seen(parse_message(parser("llama3_json", ()), '{"name": "any", "parameters": {}}')) == (
        None,
        [("any", "{}")],
    )


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_time_is_linear_in_what_is_refused(name: str) -> None:
    """Objects nested so that each looks like a call until the very end are read once, not once for each beginning."""
    unit = {"hermes": '<tool_call>{"arguments":[', "llama3_json": '{"parameters":\n', "qwen3_coder": "<tool_call>\n"}[
        name
    ]
    text = unit * 3000 + "!"
    assert parse_message(parser(name), text).content == text
    assert assemble(stream(parser(name), list(text))).content == text
