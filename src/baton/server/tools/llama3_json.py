"""Calls of Llama 3.1 and 3.2: {"name": ..., "parameters": {...}}, several in a list or with ";" between them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from baton.server.tools.deltas import SPACE, Delta, DeltaWriter, MakeId, random_call_id
from baton.server.tools.json_call import JsonCall, split_end, without_brace
from baton.server.tools.tags import begins_with, find_tag, split_run

_TAG = "<|python_tag|>"
_BETWEEN = SPACE + ";,[]"
_KEYS = frozenset(("name", "parameters", "arguments", "type"))


class Llama3JsonParser:
    """See `parser.ToolParser`.

    A call may begin where the text, a line or <|python_tag|> begins, and after another call. The tag is a special
    token: decoded with or without special tokens, the calls are the same. Nothing marks the end of broken arguments,
    so they reach to the end of the text.

    Args:
        names: of the functions that can be called: an object that names another is content. None: any.
    """

    def __init__(self, names: Collection[str] | None = None, make_id: MakeId = random_call_id) -> None:
        self._names = names
        self._out = DeltaWriter(make_id)
        self._buffer = ""  # text not yet understood
        self._lead = ""  # what precedes the object that is being read; content if it is no call
        self._after_call = False
        self._in_list = False
        self._call: JsonCall | None = None
        self._state: Callable[[], bool] = self._in_lead

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._state():
            pass
        return self._out.take()

    def finish(self) -> list[Delta]:
        if self._call is not None:
            if self._call.name is None:
                self._out.content(self._lead + self._call.text + self._buffer)
        elif self._state == self._in_broken:
            self._out.arguments(without_brace(self._buffer))
        elif not self._after_call or self._buffer:
            self._out.content(self._lead + self._buffer)
        self._out.finish()
        return self._out.take()

    # Each state consumes from the buffer and returns whether to go on (False: more text is needed).

    def _in_lead(self) -> bool:
        """Where a call may begin."""
        skipped, self._buffer = split_run(self._buffer, _BETWEEN if self._after_call else SPACE + "[")
        self._lead += skipped
        tagged = begins_with(self._buffer, _TAG)
        if not self._buffer or tagged is None:
            return False
        if tagged:
            self._lead, self._buffer = self._lead + _TAG, self._buffer[len(_TAG) :]
        elif self._buffer[0] == "{":
            self._call, self._state = JsonCall(names=self._names, keys=_KEYS), self._in_object
        else:
            self._give_back("")
        return True

    def _give_back(self, text: str) -> None:
        """What was taken for the beginning of a call is content; the bracket that ends a list of calls is not."""
        lead = self._lead.replace("]", "", 1) if self._after_call and self._in_list else self._lead
        self._out.content(lead + text)
        self._lead, self._after_call, self._in_list = "", False, False
        self._call, self._state = None, self._in_content

    def _in_content(self) -> bool:
        place, mark = find_tag(self._buffer, ("\n", _TAG))
        keep = place + (mark == "\n")
        self._out.content(self._buffer[:keep])
        self._buffer = self._buffer[keep:]
        if mark is None:
            return False
        self._state = self._in_lead
        return True

    def _in_object(self) -> bool:
        call = self._call
        assert call is not None
        new = call.name is None
        used = call.push(self._buffer)
        if call.refused_at is not None:
            self._buffer = call.text[call.refused_at :] + self._buffer[used:]
            self._give_back(call.text[: call.refused_at])
            return True
        self._buffer = self._buffer[used:]
        if call.name is None:
            return False
        if new:
            self._in_list, self._lead = self._in_list or "[" in self._lead, ""
            self._out.call(call.name)
        self._out.arguments(call.take())
        if call.ended:
            self._call, self._after_call = None, True
            self._state = self._in_broken if call.broken else self._in_tail
        return call.ended

    def _in_broken(self) -> bool:
        text, self._buffer = split_end(self._buffer)
        self._out.arguments(text)
        return False

    def _in_tail(self) -> bool:
        """After the arguments: a brace too many is forgiven."""
        skipped, self._buffer = split_run(self._buffer, SPACE + "}")
        self._lead += skipped.replace("}", "")
        if not self._buffer:
            return False
        self._state = self._in_lead
        return True
