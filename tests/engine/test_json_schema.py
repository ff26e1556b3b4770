"""Schemas that cannot be enforced in full are refused by keyword."""

import json

import pytest

from baton.core.errors import RequestError
from baton.engine.json_schema import check_schema

REFUSED = [
    ({"not": {"type": "integer"}}, "'not'"),
    ({"if": {}, "then": {}}, "'if'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "array", "contains": {"type": "integer"}}, "'contains'"),
    ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "'uniqueItems'"),
    ({"$defs": {"x": {"anyOf": [{}, {"not": {}}]}}}, "'not'"),
    ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "'allOf'"),
    ({"type": "string", "pattern": "a+", "minLength": 2}, "'pattern'"),
    ({"$ref": "http://example.org/x"}, "ref"),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=lambda x: str(x)[:40])
def test_refused(schema: object, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        check_schema(json.dumps(schema))
    assert caught.value.param == "grammar"


ACCEPTED = [
    True,
    {},
    {"type": "object", "properties": {"not": {"type": "string"}, "if": {"type": "integer"}}},
    {"const": {"not": 1, "uniqueItems": True}},
    {"enum": [{"contains": 1}]},
    {"type": "array", "uniqueItems": False},
    {"allOf": [{"type": "integer"}]},
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}},
    {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "a+"}]},
]


@pytest.mark.parametrize("schema", ACCEPTED, ids=lambda x: str(x)[:40])
def test_accepted(schema: object) -> None:
    check_schema(json.dumps(schema))


def test_deep_nesting_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match="deeply"):
        check_schema('{"items":' * 100_000 + "{}" + "}" * 100_000)
