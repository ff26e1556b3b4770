"""What a run asks for: prompts and how much is to come back. Random ones are made here, seeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baton.bench.kinds import RangeRule
from baton.core.errors import ConfigError

Messages = list[dict[str, Any]]
Prompt = list[int] | str | Messages
"""Token ids, text, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        output_tokens: tokens to generate.
        input_tokens: of the prompt; None: the server counts them.
    """

    prompt: Prompt
    output_tokens: int
    input_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a prompt or of an output: a length and how far it varies."""

    tokens: int
    ratio: float = 0.0
    rule: RangeRule = RangeRule.AROUND

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"a length must be at least 1 token, got {self.tokens}")
        if self.rule is RangeRule.AROUND and not 0 <= self.ratio < 1:
            raise ConfigError(f"the range ratio must be in [0, 1) with the rule around, got {self.ratio}")
        if self.rule is RangeRule.BELOW and not 0 <= self.ratio <= 1:
            raise ConfigError(f"the range ratio must be in [0, 1] with the rule below, got {self.ratio}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and most, both included; at least 1."""
        if self.rule is RangeRule.BELOW:
            return max(1, int(self.tokens * self.ratio)), self.tokens
        low, high = self.tokens * (1 - self.ratio), self.tokens * (1 + self.ratio)
        return max(1, int(np.floor(low))), int(np.ceil(high))

    def draw(self, count: int, rng: np.random.Generator) -> list[int]:
        """Independent lengths."""
        low, high = self.bounds
        return [int(length) for length in rng.integers(low, high + 1, size=count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTokens:
    """Prompts of random token ids, uniform over [low_id, high_id).

    Attributes:
        prefix_tokens: each prompt begins with one of the shared prefixes, of so many tokens beyond `inputs`.
        num_prefixes: drawn uniformly.
        low_id, high_id: no special tokens should lie between them.
    """

    inputs: Lengths
    outputs: Lengths
    prefix_tokens: int = 0
    num_prefixes: int = 1
    low_id: int = 100
    high_id: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.low_id < self.high_id:
            raise ConfigError(f"token ids must go from 0 or more up, got {self.low_id} to {self.high_id}")
        if self.prefix_tokens < 0 or self.num_prefixes < 1:
            raise ConfigError(f"bad shared prefixes: {self.num_prefixes} of {self.prefix_tokens} tokens")

    def make(self, count: int, rng: np.random.Generator) -> list[Ask]:
        """Fresh prompts: with the default range, two share a block of 16 tokens about never (900^-16)."""
        prefixes = [self._ids(self.prefix_tokens, rng) for _ in range(self.num_prefixes)]
        which = rng.integers(self.num_prefixes, size=count)
        lengths = zip(self.inputs.draw(count, rng), self.outputs.draw(count, rng), which, strict=True)
        return [
            asked(prefixes[prefix] + self._ids(num_input, rng), num_output) for num_input, num_output, prefix in lengths
        ]

    def _ids(self, count: int, rng: np.random.Generator) -> list[int]:
        ids: list[int] = rng.integers(self.low_id, self.high_id, size=count).tolist()
        return ids


def asked(token_ids: Sequence[int], output_tokens: int) -> Ask:
    """A request whose prompt is token ids."""
    return Ask(prompt=list(token_ids), output_tokens=output_tokens, input_tokens=len(token_ids))
