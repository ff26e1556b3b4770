"""The load generator: sends requests when they are due, and keeps what was seen of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from baton.bench.answer import Answer
from baton.bench.sample import Sample

Send = Callable[[int, Answer], Awaitable[None]]
"""Sends the request of this number and reads its answer to the end; fails by `Answer.error` only."""


@dataclass(slots=True)
class Live:
    """A run while it goes on: requests sent, and the answers that ended, with their tokens."""

    total: int
    start_s: float = field(default_factory=time.perf_counter)
    num_sent: int = 0
    num_ended: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    lag_s: float = 0.0

    def note(self, sample: Sample) -> None:
        """A request ended."""
        self.num_ended += 1
        self.num_failed += not sample.ok
        self.num_tokens += sample.output_tokens
        self.lag_s = max(self.lag_s, sample.lag_s)
        if sample.ok:
            self.ttft_s.append(sample.ttft_s)


class Load:
    """One run.

    Args:
        lengths: tokens of each prompt; None where only the server knows.
        max_concurrency: requests in flight at most; what is due beyond waits in the client.
    """

    def __init__(self, send: Send, lengths: Sequence[int | None], live: Live, max_concurrency: int | None) -> None:
        self._send = send
        self._lengths = lengths
        self._live = live
        self._max_concurrency = max_concurrency
        self._samples: list[Sample] = []

    async def open(self, times: Sequence[float]) -> list[Sample]:
        """Open loop: each at its time (seconds after `Live.start_s`), however the server fares."""
        limit = nullcontext() if self._max_concurrency is None else asyncio.Semaphore(self._max_concurrency)
        async with asyncio.TaskGroup() as tasks:
            for index, due_s in enumerate(times):
                while (wait_s := due_s - self._now()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(self._limited(index, due_s, limit))
        return self._sorted()

    async def closed(self) -> list[Sample]:
        """Closed loop: `max_concurrency` clients, each of which sends its next request when its last one ended."""
        numbers = iter(range(len(self._lengths)))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._max_concurrency or 1):
                tasks.create_task(self._take_turns(numbers))
        return self._sorted()

    async def _limited(self, index: int, due_s: float, limit: AbstractAsyncContextManager[None]) -> None:
        late_s = self._now() - due_s
        async with limit:
            await self._one(index, due_s, max(due_s, self._now() - late_s))

    async def _take_turns(self, numbers: Iterator[int]) -> None:
        for index in numbers:
            now_s = self._now()
            await self._one(index, now_s, now_s)

    async def _one(self, index: int, due_s: float, free_s: float) -> None:
        answer = Answer()
        self._live.num_sent += 1
        sent_s = self._now()
        await self._send(index, answer)
        answer.close()
        sample = self._sample(index, answer, due_s=due_s, free_s=free_s, sent_s=sent_s)
        self._live.note(sample)
        self._samples.append(sample)

    def _sample(self, index: int, answer: Answer, *, due_s: float, free_s: float, sent_s: float) -> Sample:
        start_s, length = self._live.start_s, self._lengths[index]
        return Sample(
            index=index,
            due_s=due_s,
            free_s=free_s,
            sent_s=sent_s,
            chunk_s=tuple(at_s - start_s for at_s in answer.chunk_s),
            input_tokens=answer.input_tokens or length or 0,
            output_tokens=answer.output_tokens or len(answer.chunk_s),
            text=answer.text,
            token_ids=tuple(answer.token_ids),
            error=answer.error,
        )

    def _now(self) -> float:
        return time.perf_counter() - self._live.start_s

    def _sorted(self) -> list[Sample]:
        return sorted(self._samples, key=lambda sample: sample.index)
