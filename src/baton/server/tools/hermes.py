"""Calls of Hermes, Qwen2.5, Qwen3 and SmolLM2: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from collections.abc import Callable

from baton.server.tools.deltas import SPACE, Delta, DeltaWriter, MakeId, random_call_id
from baton.server.tools.json_call import JsonCall, split_end, without_brace
from baton.server.tools.tags import begins_with, find_tag, split_run

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """See `parser.ToolParser`. Between the tags stands one object, or a list of them (SmolLM2)."""

    def __init__(self, make_id: MakeId = random_call_id) -> None:
        self._out = DeltaWriter(make_id)
        self._buffer = ""  # text not yet understood
        self._lead = ""  # what precedes the object that is being read; content if it is no call
        self._call = JsonCall()
        self._closing = False  # a closing tag that comes now belongs to a call
        self._state: Callable[[], bool] = self._in_content

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._state():
            pass
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._state in (self._in_lead, self._in_object) and self._call.name is None:
            self._out.content(self._lead + self._call.text + self._buffer)
        elif self._state == self._in_broken:
            self._out.arguments(self._buffer)
        elif self._state == self._in_content:
            self._out.content(self._buffer)
        self._out.finish()
        return self._out.take()

    # Each state consumes from the buffer and returns whether to go on (False: more text is needed).

    def _in_content(self) -> bool:
        place, tag = find_tag(self._buffer, (_OPEN, _CLOSE) if self._closing else (_OPEN,))
        self._out.content(self._buffer[:place])
        self._buffer = self._buffer[place + len(tag or "") :]
        if tag is None:
            return False
        self._closing = False
        if tag == _OPEN:
            self._begin(_OPEN)
        return True

    def _begin(self, lead: str) -> None:
        self._lead, self._call, self._state = lead, JsonCall(), self._in_lead

    def _in_lead(self) -> bool:
        skipped, self._buffer = split_run(self._buffer, SPACE + "[")
        self._lead += skipped
        if self._buffer:
            self._state = self._in_object
        return self._buffer != ""

    def _in_object(self) -> bool:
        call, new = self._call, self._call.name is None
        used = call.push(self._buffer)
        if call.refused_at is not None:
            self._out.content(self._lead + call.text[: call.refused_at])
            self._buffer = call.text[call.refused_at :] + self._buffer[used:]
            self._state = self._in_content
            return True
        self._buffer = self._buffer[used:]
        if call.name is None:
            return False
        if new:
            self._out.call(call.name)
        self._out.arguments(call.take())
        if call.ended:
            self._state = self._in_broken if call.broken else self._in_tail
        return call.ended

    def _in_broken(self) -> bool:
        """Arguments that are no JSON: the client gets them as they are, up to the end of the call."""
        place, tag = find_tag(self._buffer, (_CLOSE,))
        text, end = split_end(self._buffer[:place])
        self._out.arguments(text)
        if tag is None:
            self._buffer = end + self._buffer[place:]
            return False
        self._out.arguments(without_brace(end))
        self._buffer, self._state = self._buffer[place + len(tag) :], self._in_content
        return True

    def _in_tail(self) -> bool:
        """After the arguments. Brackets too many or too few are forgiven; other text is content."""
        skipped, rest = split_run(self._buffer, SPACE + "}],")
        if not rest:
            return False
        if begins_with(rest, _CLOSE) is None:
            return False
        if rest[0] == "{":
            self._buffer, self._closing = rest, True
            self._begin(skipped)
        else:
            closed = begins_with(rest, _CLOSE)
            self._buffer = rest[len(_CLOSE) :] if closed else rest
            self._closing, self._state = not closed, self._in_content
        return True
