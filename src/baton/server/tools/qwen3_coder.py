"""Calls of Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from baton.server.tools.deltas import SPACE, Delta, DeltaWriter, MakeId, random_call_id
from baton.server.tools.tags import begins_with, find_tag, split_run

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_WORDS = {"True": "true", "False": "false", "None": "null"}
Schemas = Mapping[str, Mapping[str, Any]]


class Qwen3CoderParser:
    """See `parser.ToolParser`. Arguments come one parameter at a time.

    Values are bare text. The schema of the function says whether one is JSON (any type but string) or a string; what
    is no valid JSON is a string. One line end beside each tag is not part of the value. <tool_call> may be missing.

    Args:
        schemas: JSON schema of the parameters, by function.
    """

    def __init__(self, schemas: Schemas | None = None, make_id: MakeId = random_call_id) -> None:
        self._schemas = schemas or {}
        self._out = DeltaWriter(make_id)
        self._buffer = ""  # text not yet understood
        self._held = ""  # what precedes the function's name; content if it is no call
        self._function = ""
        self._key = ""
        self._num_arguments = 0
        self._closing = False  # closing tags that come now belong to a call
        self._state: Callable[[], bool] = self._in_content

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._state():
            pass
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._state in (self._in_head, self._in_name):
            self._out.content(self._held + self._buffer)
        elif self._state == self._in_value:  # as a JSON text that is cut off
            place, _ = find_tag(self._buffer, (_PARAMETER_END,))
            self._argument(json.dumps(self._buffer[:place].removeprefix("\n"), ensure_ascii=False)[:-1])
        elif self._state == self._in_content:
            self._out.content(self._buffer)
        self._out.finish()
        return self._out.take()

    # Each state consumes from the buffer and returns whether to go on (False: more text is needed).

    def _in_content(self) -> bool:
        tags = (_OPEN, _FUNCTION, *((_CLOSE, _FUNCTION_END) if self._closing else ()))
        place, tag = find_tag(self._buffer, tags)
        self._out.content(self._buffer[:place])
        self._buffer = self._buffer[place:]
        if tag in (_OPEN, _FUNCTION):
            self._held, self._state = "", self._in_head
            self._closing = False
        elif tag is not None:
            self._buffer = self._buffer[len(tag) :]
        return tag is not None

    def _in_head(self) -> bool:
        """At <tool_call> or <function=."""
        skipped, self._buffer = split_run(self._buffer, SPACE)
        self._held += skipped
        for tag in (_OPEN, _FUNCTION) if not self._held else (_FUNCTION,):
            begins = begins_with(self._buffer, tag)
            if begins is None:
                return False
            if begins:
                self._held, self._buffer = self._held + tag, self._buffer[len(tag) :]
                self._state = self._in_name if tag == _FUNCTION else self._in_head
                return True
        self._give_back()
        return True

    def _give_back(self) -> None:
        self._out.content(self._held)
        self._state = self._in_content

    def _in_name(self) -> bool:
        name, found, rest = self._buffer.partition(">")
        if any(char in "<\n" for char in name):
            self._give_back()
            return True
        if not found:
            return False
        if not name.strip():
            self._give_back()
            return True
        self._function, self._buffer, self._num_arguments = name.strip(), rest, 0
        self._out.call(self._function)
        self._state = self._in_function
        return True

    def _in_function(self) -> bool:
        """Between parameters. Anything but the next one ends the call."""
        _, self._buffer = split_run(self._buffer, SPACE)
        begins = begins_with(self._buffer, _PARAMETER)
        if not self._buffer or begins is None:
            return False
        if begins:
            key, found, rest = self._buffer[len(_PARAMETER) :].partition(">")
            if found:
                self._key, self._buffer, self._state = key.strip(), rest, self._in_value
            return bool(found)
        if begins_with(self._buffer, _FUNCTION_END) is None:
            return False
        self._out.arguments("}" if self._num_arguments else "{}")
        self._closing, self._state = True, self._in_content
        return True

    def _in_value(self) -> bool:
        value, found, rest = self._buffer.partition(_PARAMETER_END)
        if not found:
            return False
        value = value.removeprefix("\n").removesuffix("\n")
        self._argument(_as_json(value, self._schemas.get(self._function, {}), self._key))
        self._buffer, self._state = rest, self._in_function
        return True

    def _argument(self, value: str) -> None:
        key = json.dumps(self._key, ensure_ascii=False)
        self._out.arguments(f"{', ' if self._num_arguments else '{'}{key}: {value}")
        self._num_arguments += 1


def _as_json(text: str, schema: Mapping[str, Any], key: str) -> str:
    """The value of a parameter as JSON text."""
    properties = schema.get("properties")
    types = _types(properties.get(key)) if isinstance(properties, Mapping) else set()
    bare = _WORDS.get(text.strip(), text.strip())
    if types - {"string"} and ("string" not in types or (bare == "null" and "null" in types)):
        try:
            json.loads(bare, parse_constant=_refuse)
            return bare
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _types(schema: object) -> set[str]:
    """Types that a schema names, its alternatives included."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for keyword in ("anyOf", "oneOf", "allOf"):
        entries = schema.get(keyword)
        for entry in entries if isinstance(entries, list) else ():
            types |= _types(entry)
    return types


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
