"""Reads one call written as a JSON object: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
from collections.abc import Collection

from baton.server.tools.deltas import SPACE
from baton.server.tools.json_object import Member, ObjectScanner, is_object

_ARGUMENTS = ("arguments", "parameters")
_END = SPACE + "}"
_STRIDE = 256  # what is no call must not be read much further than where that shows: it is read again


class JsonCall:
    """One call, while its text comes in pieces.

    It is a call from the moment that its name is known and its arguments begin; from then on the arguments are passed
    on as they are written. Until then its text is held, because it may still turn out to be none. Members may come in
    any order; without arguments the call has `{}`; arguments written as a JSON string are unpacked; others are ignored.

    Attributes:
        name: of the function; None while it is not known to be a call.
        refused_at: set when it is no call: how much of `text` shows that. What follows may be anything.
        text: what was accepted, while `name` is None.
    """

    def __init__(self, *, names: Collection[str] | None = None, keys: Collection[str] | None = None) -> None:
        """
        Args:
            names: of the functions that can be called; None: any.
            keys: of the members that may precede what makes it a call; None: any.
        """
        self._names = names
        self._keys = keys
        self._scanner = ObjectScanner()
        self._num_examined = 0
        self._function: str | None = None
        self._arguments: Member | None = None
        self._pending = ""
        self._base = 0  # position of `text`
        self.name: str | None = None
        self.refused_at: int | None = None
        self.text = ""

    @property
    def ended(self) -> bool:
        """Nothing more is accepted: the object is complete, or what follows is no JSON."""
        return self._scanner.done or self._scanner.failed

    @property
    def broken(self) -> bool:
        """Ended inside the arguments."""
        return self._scanner.failed and self._arguments is not None and self._arguments.value_end is None

    def push(self, text: str) -> int:
        """Take further text, the first beginning with the brace. Returns how many characters are accepted."""
        used = 0
        while used < len(text) and not self.ended and self.refused_at is None:
            stride = _STRIDE if self.name is None else len(text)
            piece = text[used : used + stride]
            accepted = self._scanner.push(piece)
            self.text += piece[:accepted]
            used += accepted
            if self.name is None:
                self._decide()
            if self.name is not None:
                self._stream()
        return used

    def take(self) -> str:
        """Text of the arguments since the last call of this."""
        text, self._pending = self._pending, ""
        return text

    def _decide(self) -> None:
        """Look at the members in order, so that the answer does not depend on how much has come."""
        members = self._scanner.members
        while self._num_examined < len(members) and self.name is None and self.refused_at is None:
            if not self._examine(members[self._num_examined]):
                break
            self._num_examined += 1
        if self.name is None and self.refused_at is None and self.ended:
            if self._scanner.done and self._function is not None:
                self.name, self._pending = self._function, "{}"
            else:
                self.refused_at = self._scanner.position

    def _examine(self, member: Member) -> bool:
        """Whether all is known of a member."""
        if member.key_end is None:
            return False
        key = self._value(member.key_start, member.key_end)
        if self._keys is not None and key not in self._keys:
            self.refused_at = member.key_end
        elif key == "name" and self._function is None:
            self._take_name(member)
        elif key in _ARGUMENTS and self._arguments is None:
            self._take_arguments(member)
        if self._arguments is not None:
            self.name = self._function
        return member.value_end is not None

    def _take_name(self, member: Member) -> None:
        if member.value_end is not None:
            name = self._value(member.value_start, member.value_end)
            if isinstance(name, str) and name and (self._names is None or name in self._names):
                self._function = name
            else:
                self.refused_at = member.value_end

    def _take_arguments(self, member: Member) -> None:
        start, end = member.value_start, member.value_end
        if start is not None and self.text[start] == "{":
            self._arguments = member
        elif end is not None:
            value = self._value(start, end)
            packed = "{}" if value is None or value == "" else value
            if isinstance(packed, str) and is_object(packed):
                self._arguments, self._pending = member, packed
                member.value_start = end  # nothing of it is left to stream
            else:
                self.refused_at = end

    def _stream(self) -> None:
        """Move new text of the arguments from `text` to what `take` returns."""
        if self._arguments is not None:
            start, end = self._arguments.value_start, self._arguments.value_end
            assert start is not None
            stop = self._scanner.position if end is None else end
            self._pending += self.text[max(start - self._base, 0) : max(stop - self._base, 0)]
        self._base, self.text = self._scanner.position, ""

    def _value(self, start: int | None, end: int | None) -> object:
        assert start is not None and end is not None
        try:
            value = json.loads(self.text[start:end])
            if isinstance(value, str):
                value.encode()
        except (ValueError, RecursionError):  # half a surrogate pair, an integer of too many digits, too many brackets
            return 0
        return value


def split_end(broken: str) -> tuple[str, str]:
    """Broken arguments so far: what belongs to them, and what may turn out to be the end of the call."""
    text = broken.rstrip(_END)
    return text, broken[len(text) :]


def without_brace(end: str) -> str:
    """The end of a call without its own closing brace: what belongs to the arguments."""
    return end.rstrip(SPACE).removesuffix("}").rstrip(SPACE)
