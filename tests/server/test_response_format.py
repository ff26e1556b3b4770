"""`response_format` and vLLM's fields: the grammar they mean, and which field an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.core.errors import RequestError
from baton.core.sampling import Grammar, GrammarKind
from baton.server.response_format import response_grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "\u00e9"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_fallback": True}},
    ],
)
def test_free_text(fields: dict[str, Any]) -> None:
    assert response_grammar(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "whitespace_pattern": None}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA), "response_format": {"type": "text"}},
    ],
)
def test_schemas_keep_the_order_of_properties(fields: dict[str, Any]) -> None:
    grammar = response_grammar(**fields)
    assert grammar is not None
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    assert json.loads(grammar.source) == SCHEMA
    assert list(json.loads(grammar.source)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar(kind=GrammarKind.JSON_OBJECT)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            Grammar(kind=GrammarKind.JSON_OBJECT),
        ),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind=GrammarKind.JSON_OBJECT)),
        ({"structured_outputs": {"regex": "a+"}}, Grammar(kind=GrammarKind.REGEX, source="a+")),
        ({"guided_regex": "a+"}, Grammar(kind=GrammarKind.REGEX, source="a+")),
        ({"guided_choice": ["a", "\u00e9"]}, Grammar(kind=GrammarKind.CHOICE, source='["a", "\u00e9"]')),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(kind=GrammarKind.CHOICE, source='["a"]')),
        ({"guided_grammar": 'root ::= "a"'}, Grammar(kind=GrammarKind.EBNF, source='root ::= "a"')),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Grammar(kind=GrammarKind.EBNF, source='root ::= "a"')),
    ],
)
def test_other_kinds(fields: dict[str, Any], grammar: Grammar) -> None:
    assert response_grammar(**fields) == grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": ["text"]}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": 1}}}, "response_format"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs"),
        ({"structured_outputs": {"json": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 1}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_grammar": {}}, "guided_grammar"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice"),
        ({"guided_choice": ["a" * 262_144]}, "guided_choice"),
        ({"guided_regex": "a" * 262_145}, "guided_regex"),
        ({"guided_grammar": "a" * 262_145}, "guided_grammar"),
        ({"guided_json": {"const": "a" * 262_144}}, "guided_json"),
        ({"guided_json": '{"const": 1}' + " " * 262_144}, "guided_json"),
        ({"structured_outputs": {"regex": "a" * 262_145}}, "structured_outputs"),
        ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
    ids=lambda value: str(value)[:80] if isinstance(value, dict) else None,
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        response_grammar(**fields)
    assert error.value.param == param
    assert "\n" not in str(error.value)


def test_the_longest_that_is_taken() -> None:
    grammar = response_grammar(guided_regex="a" * 262_144)
    assert grammar is not None and len(grammar.source) == 262_144
    assert response_grammar(guided_choice=["a"] * 1024) is not None


def test_half_a_surrogate_pair_stays_encodable() -> None:
    grammar = response_grammar(guided_json='{"const": "\\ud800"}')
    assert grammar is not None
    assert grammar.source.encode() == b'{"const": "\\ud800"}'
