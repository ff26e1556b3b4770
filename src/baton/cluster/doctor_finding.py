"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad a finding is. ERROR: requests fail, or hand-offs do not happen."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence: what is so, and, where it is wrong, what to do.

    Attributes:
        subject: what it is about: a URL, or a word.
    """

    level: Level
    subject: str
    message: str


def ok(subject: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(level=Level.OK, subject=subject, message=message)


def warning(subject: str, message: str) -> Finding:
    """Works, with a drawback."""
    return Finding(level=Level.WARNING, subject=subject, message=message)


def error(subject: str, message: str) -> Finding:
    """Does not work."""
    return Finding(level=Level.ERROR, subject=subject, message=message)
