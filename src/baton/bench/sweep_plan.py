"""What a sweep runs, in which order, and with which random numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from baton.bench.case import Case, RunName
from baton.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every combination, `iterations` times in each mode."""

    modes: tuple[str, ...]
    qps: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    iterations: int = 3

    def __post_init__(self) -> None:
        if not (self.modes and self.qps and self.input_tokens and self.output_tokens and self.iterations > 0):
            raise ConfigError("a sweep needs at least one mode, rate, input length, output length and iteration")
        if len(set(self.modes)) < len(self.modes):
            raise ConfigError(f"each mode once, got {', '.join(self.modes)}")

    @property
    def cases(self) -> list[Case]:
        """In order: short and slow ones first."""
        return [
            Case(input_tokens=num_input, output_tokens=num_output, qps=qps)
            for num_input in self.input_tokens
            for num_output in self.output_tokens
            for qps in self.qps
        ]

    def blocks(self) -> Iterator[list[RunName]]:
        """All cases of one mode and iteration: what one server does in a row.

        The order of modes turns round with every iteration (A B, B A, A B), so that a drift of the machine does not
        favour one of them.
        """
        for iteration in range(self.iterations):
            modes: Sequence[str] = self.modes if iteration % 2 == 0 else self.modes[::-1]
            for mode in modes:
                yield [RunName(mode=mode, case=case, iteration=iteration) for case in self.cases]


def seed_of(run: RunName, base: int) -> int:
    """Fresh prompts and arrivals for every case and iteration; the same in every mode."""
    case = run.case
    text = f"{base} {case.qps:g} {case.input_tokens} {case.output_tokens} {run.iteration}"
    return crc32(text.encode())
