"""Choices that a user names. Apart from what uses them, so that a command line can be read without numpy."""

from __future__ import annotations

from enum import Enum


class Endpoint(Enum):
    """Where requests go."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Of the URL."""
        return "/v1/completions" if self is Endpoint.COMPLETIONS else "/v1/chat/completions"

    @property
    def backend(self) -> str:
        """As results name it."""
        return "openai" if self is Endpoint.COMPLETIONS else "openai-chat"


class RangeRule(Enum):
    """What a range ratio r does to a length L. The two conventions in use differ, so results name theirs.

    AROUND: uniform over floor(L (1 - r)) .. ceil(L (1 + r)), mean L; `vllm bench serve` since 0.8. r = 0 is exactly L.
    BELOW: uniform over floor(r L) .. L, mean (1 + r) / 2 L; sa-bench, with r = 0.8 by default. r = 1 is exactly L.
    """

    AROUND = "around"
    BELOW = "below"


class RampShape(Enum):
    """How the rate grows with the number of the request."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Metric(Enum):
    """What is plotted: time to first token, or time per output token."""

    TTFT = "ttft"
    TPOT = "tpot"
