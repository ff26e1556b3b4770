"""From frames to messages, for frames that may be anything."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.errors import UserError


class Decoder:
    """Frames to messages of one type; what is not one is counted and dropped.

    Args:
        kind: a message type, or a union of several.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.num_malformed = 0

    def decode(self, frame: bytes) -> Any:
        """The message, or None."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UserError, RecursionError):  # UserError: a value that a core type refuses
            self.num_malformed += 1
            return None
