"""One of the sequences of a request as its client sees it: what has come, and what was shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.request import TokenLogprobs
from baton.text.outputs import CompletionOutput, OutputCollector


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a choice has brought since the last piece.

    Attributes:
        logprobs: of the last of token_ids: those that the request resumed have none.
        first: it is the choice's first piece.
        finish_reason: "stop" or "length" on the last one.
        num_tokens: output tokens of the choice so far.
    """

    text: str
    token_ids: list[int]
    logprobs: Sequence[TokenLogprobs]
    first: bool
    finish_reason: str | None
    stop_reason: str | int | None
    num_tokens: int


class Choice:
    """A view on one output of a collector.

    Args:
        collector: of the prompt.
        output: one of its outputs.
        position: index of the choice in the answer.

    Attributes:
        done: the last piece was taken.
    """

    __slots__ = ("_num_chars", "_num_logprobs", "_num_tokens", "_started", "collector", "done", "output", "position")

    def __init__(self, collector: OutputCollector, output: CompletionOutput, position: int) -> None:
        self.collector = collector
        self.output = output
        self.position = position
        self.done = False
        self._started = False
        self._num_tokens = self._num_logprobs = self._num_chars = 0

    def due(self, interval: int) -> bool:
        """Whether a piece should be shown now: the first and the last at once, else every `interval` tokens."""
        if self.done:
            return False
        num_new = len(self.output.token_ids) - self._num_tokens
        return self.output.finish_reason is not None or num_new >= (interval if self._started else 1)

    def take(self) -> Piece:
        """What is new."""
        output = self.output
        piece = Piece(
            text=output.text[self._num_chars :],
            token_ids=output.token_ids[self._num_tokens :],
            logprobs=() if output.logprobs is None else output.logprobs[self._num_logprobs :],
            first=not self._started,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            num_tokens=len(output.token_ids),
        )
        self._started = True
        self._num_tokens, self._num_chars = len(output.token_ids), len(output.text)
        self._num_logprobs += len(piece.logprobs)
        self.done = output.finish_reason is not None
        return piece


def choices_of(collectors: Sequence[OutputCollector]) -> list[Choice]:
    """Every choice of an answer, in its order: all of the first prompt, all of the second, ..."""
    outputs = [(collector, output) for collector in collectors for output in collector.output.outputs]
    return [Choice(collector, output, position) for position, (collector, output) in enumerate(outputs)]
