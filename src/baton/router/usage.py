"""Token counts of a prompt: only the worker that prefilled it knows how much of it was cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_DATA = len(b"data: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptUsage:
    """As the prefill worker counted. num_cached_tokens: None where it does not say."""

    num_tokens: int
    num_cached_tokens: int | None

    def merged(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The decode worker's usage with these counts of the prompt."""
        found = {**usage, "prompt_tokens": self.num_tokens}
        found["total_tokens"] = self.num_tokens + int(usage.get("completion_tokens") or 0)
        if self.num_cached_tokens is not None:
            details = usage.get("prompt_tokens_details") or {}
            found["prompt_tokens_details"] = {**details, "cached_tokens": self.num_cached_tokens}
        return found

    def put_into(self, event: bytes) -> bytes:
        """An event with these counts of the prompt, if it has a usage."""
        chunk = msgspec.json.decode(event[_DATA:])
        if not chunk.get("usage"):
            return event
        chunk["usage"] = self.merged(chunk["usage"])
        return b"data: " + _encode(chunk) + b"\n\n"
