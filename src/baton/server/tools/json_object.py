"""Follows one JSON object (RFC 8259) while its text comes in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ATOM_RUN = re.compile(r"[-+.0-9a-zA-Z]+")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")


class _Expect(Enum):
    OBJECT = auto()
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    ATOM = auto()


@dataclass(slots=True)
class Member:
    """Where a member of the outermost object stands, in characters from its brace; None while not reached."""

    key_start: int
    key_end: int | None = None
    value_start: int | None = None
    value_end: int | None = None


class ObjectScanner:
    """Accepts characters as long as they can begin, or are, one JSON object.

    Attributes:
        position: characters accepted. What is accepted does not depend on how the text is cut.
        members: of the outermost object, in order; only the last can be incomplete.
        done: the object is complete.
        failed: the character after `position` cannot follow.
    """

    def __init__(self) -> None:
        self.position = 0
        self.members: list[Member] = []
        self.done = False
        self.failed = False
        self._open: list[str] = []  # brackets not closed
        self._expect = _Expect.OBJECT
        self._is_key = False  # of the string that is being read
        self._hex_left = 0
        self._atom = ""

    def push(self, text: str) -> int:
        """Take further text, which begins at `position`. Returns how many of its characters are accepted."""
        start, at = self.position, 0
        while at < len(text) and not (self.done or self.failed):
            at += self._advance(text, at)
            self.position = start + at
        return at

    def _advance(self, text: str, at: int) -> int:
        """Characters accepted from `at` on; 0 if the state alone changed."""
        match self._expect:
            case _Expect.STRING:
                return self._in_string(text, at)
            case _Expect.ESCAPE | _Expect.HEX:
                return self._in_escape(text[at])
            case _Expect.ATOM:
                return self._in_atom(text, at)
        char = text[at]
        return 1 if char in " \t\r\n" and self._expect is not _Expect.OBJECT else self._structure(char)

    def _in_string(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        if plain:
            return plain.end() - at
        if text[at] == "\\":
            self._expect = _Expect.ESCAPE
        elif text[at] != '"':
            return self._fail()
        elif self._is_key:
            self._expect = _Expect.COLON
            if len(self._open) == 1:
                self.members[-1].key_end = self.position + 1
        else:
            self._value_ends(self.position + 1)
        return 1

    def _in_escape(self, char: str) -> int:
        if self._expect is _Expect.HEX:
            if char not in _HEX:
                return self._fail()
            self._hex_left -= 1
            if not self._hex_left:
                self._expect = _Expect.STRING
        elif char == "u":
            self._expect, self._hex_left = _Expect.HEX, 4
        elif char in '"\\/bfnrt':
            self._expect = _Expect.STRING
        else:
            return self._fail()
        return 1

    def _in_atom(self, text: str, at: int) -> int:
        run = _ATOM_RUN.match(text, at)
        if run:
            self._atom += run[0]
            return len(run[0])
        if not _ATOM.fullmatch(self._atom):
            return self._fail()
        self._value_ends(self.position)
        return 0

    def _structure(self, char: str) -> int:
        """A character that is neither white space nor inside a string, a number or a word."""
        expect = self._expect
        if expect is _Expect.OBJECT and char == "{":
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END
        elif expect is _Expect.COLON and char == ":":
            self._expect = _Expect.VALUE
        elif expect in (_Expect.KEY, _Expect.KEY_OR_END) and char == '"':
            self._expect, self._is_key = _Expect.STRING, True
            if len(self._open) == 1:
                self.members.append(Member(self.position))
        elif expect is _Expect.COMMA_OR_END and char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
        elif char in "}]" and self._may_close(char):
            self._open.pop()
            self._value_ends(self.position + 1)
        elif expect in (_Expect.VALUE, _Expect.VALUE_OR_END):
            return self._value_begins(char)
        else:
            return self._fail()
        return 1

    def _may_close(self, char: str) -> bool:
        empty = _Expect.KEY_OR_END if char == "}" else _Expect.VALUE_OR_END
        pairs = self._open[-1:] == ["{" if char == "}" else "["]
        return pairs and self._expect in (empty, _Expect.COMMA_OR_END)

    def _value_begins(self, char: str) -> int:
        used = 1
        outermost = len(self._open) == 1
        if char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char in "{[":
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
        elif _ATOM_RUN.match(char):
            self._expect, self._atom, used = _Expect.ATOM, "", 0
        else:
            return self._fail()
        if outermost:
            self.members[-1].value_start = self.position
        return used

    def _value_ends(self, end: int) -> None:
        self._expect = _Expect.COMMA_OR_END
        if len(self._open) == 1:
            self.members[-1].value_end = end
        self.done = not self._open

    def _fail(self) -> int:
        self.failed = True
        return 0


def is_object(text: str) -> bool:
    """Whether the text is one JSON object, white space around it aside."""
    text = text.strip(" \t\r\n")
    scanner = ObjectScanner()
    return scanner.push(text) == len(text) and scanner.done
