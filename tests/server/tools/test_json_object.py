"""The scanner accepts what is a beginning of one JSON object, and nothing else: json.loads decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.server.tools.json_object import ObjectScanner, is_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(value=OBJECTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 2]), more=st.text(max_size=3))
def test_an_object_is_accepted_and_not_a_character_more(
    value: dict[str, object], ascii_only: bool, indent: int | None, more: str
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    scanner = ObjectScanner()
    assert scanner.push(text + more) == len(text)
    assert scanner.done and not scanner.failed


@given(value=OBJECTS, ascii_only=st.booleans())
def test_members_are_where_they_stand(value: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner = ObjectScanner()
    for char in text:
        assert scanner.push(char) == 1
    read = {
        json.loads(text[m.key_start : m.key_end]): json.loads(text[m.value_start : m.value_end])
        for m in scanner.members
    }
    assert read == value


@given(text=st.text(alphabet='{}[]",:\\ntu01-.eE ', max_size=12))
def test_agrees_with_json_loads(text: str) -> None:
    text = "{" + text
    try:
        expected = isinstance(json.loads(text), dict)
    except ValueError:
        expected = False
    assert is_object(text) is expected


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"a": "x\ny"}', 8),  # a raw line end in a string
        ('{"a": "\\x"}', 8),
        ('{"a": 01}', 8),  # seen at the end of the number
        ('{"a": True}', 10),
        ('{"a": 1,}', 8),
        ("{a: 1}", 1),
        ('{"a": [1}', 8),
        ('{"a" 1}', 5),
        ("[1]", 0),
        (' {"a": 1}', 0),
    ],
)
def test_stops_at_the_first_character_that_cannot_follow(text: str, accepted: int) -> None:
    scanner = ObjectScanner()
    assert scanner.push(text) == accepted
    assert scanner.failed
    scanner = ObjectScanner()
    assert sum(scanner.push(char) for char in text) == accepted
