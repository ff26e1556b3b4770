"""Finds stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until the first stop string is complete.

    The stop string that is complete first wins; of those complete at the same character, the longest. The result
    depends on the text alone, not on how it is cut. Text that may still turn out to begin a stop string is held back.

    Args:
        stops: non-empty strings; none means that all text passes.
        include_stop: the stop string itself is passed on too.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        assert all(stops)
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take further text. Returns (text that may be shown now, the stop string that ended it or None).

        After a match nothing more may be pushed; text behind the stop string is dropped.
        """
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, stop = match
            self._held = ""
            return buffer[: start + len(stop)] if self._include_stop else buffer[:start], stop
        keep = self._possible_beginning(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], None

    def flush(self) -> str:
        """The text held back, when the output ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        """(start, stop string) of the match with the smallest end, then the smallest start."""
        found = [(buffer.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(ends)[1:] if ends else None

    def _possible_beginning(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that a stop string begins with."""
        longest = min(max((len(stop) for stop in self._stops), default=1) - 1, len(buffer))
        for length in range(longest, 0, -1):
            if any(stop.startswith(buffer[-length:]) for stop in self._stops):
                return length
        return 0
