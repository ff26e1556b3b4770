"""Finds tags in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def find_tag(text: str, tags: Sequence[str]) -> tuple[int, str | None]:
    """(place, tag) of the first tag in `text`; or (length of what is certainly not part of one, None).

    Tags begin with "<", or another character that occurs nowhere else in them.
    """
    found = [(text.find(tag), tag) for tag in tags if tag in text]
    if found:
        return min(found)
    for length in range(min(max(map(len, tags)) - 1, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return len(text) - length, None
    return len(text), None


def begins_with(text: str, tag: str) -> bool | None:
    """Whether `text` begins with `tag`; None while it is too short to tell."""
    if len(text) < len(tag) and tag.startswith(text):
        return None
    return text.startswith(tag)


def split_run(text: str, chars: str) -> tuple[str, str]:
    """The beginning of `text` that consists of `chars`, and the rest."""
    rest = text.lstrip(chars)
    return text[: len(text) - len(rest)], rest
