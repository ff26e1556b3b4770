"""What was seen of one request: the raw material of every figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. All times are seconds since the start of the run.

    Attributes:
        index: its number in the workload.
        due_s: when it was to be sent.
        free_s: when it might be sent: due, and below the limit of requests in flight.
        sent_s: when it was sent.
        chunk_s: when the pieces of the answer came that had a choice in them; the first is the first token.
        input_tokens, output_tokens: as the server counted them, else the prompt's length, and the number of pieces.
        error: "" when it went well.
    """

    index: int
    due_s: float
    free_s: float
    sent_s: float
    chunk_s: tuple[float, ...]
    input_tokens: int
    output_tokens: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it counts."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to the first piece; 0 if there was none."""
        return self.chunk_s[0] - self.sent_s if self.chunk_s else 0.0

    @property
    def latency_s(self) -> float:
        """End to end: from sending to the last piece; 0 if there was none. Waiting in the client is not in it."""
        return self.chunk_s[-1] - self.sent_s if self.chunk_s else 0.0

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (latency - TTFT) / (output tokens - 1); 0 for one token."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: between each piece and the next."""
        return [after - before for before, after in zip(self.chunk_s, self.chunk_s[1:], strict=False)]

    @property
    def queue_s(self) -> float:
        """Time in the client: from when it was due to its sending."""
        return self.sent_s - self.due_s

    @property
    def lag_s(self) -> float:
        """The part of it in which nothing but the client's slowness kept it."""
        return self.sent_s - self.free_s

    @property
    def end_s(self) -> float:
        """When the last piece came."""
        return self.chunk_s[-1] if self.chunk_s else self.sent_s
