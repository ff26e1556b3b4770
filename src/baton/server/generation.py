"""The engine's side of one HTTP request: one stream of deltas a prompt, started together and ended together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from enum import Enum

from starlette.types import Receive

from baton.core.handoff import Ticket
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stops import first_stop
from baton.server.engine_client import DeltaStream
from baton.server.metrics import RequestMetrics
from baton.server.request_log import log_end, log_start
from baton.server.state import ServerState
from baton.text.outputs import OutputCollector
from baton.web.errors import ApiError, ClientGoneError


class Ending(Enum):
    """Why the server ended a generation before the engine did."""

    CLIENT_GONE = "client gone"
    DEADLINE = "deadline"


class Generation:
    """Runs the prompts of one request until all are complete, the client is gone, or the deadline has passed.

    Use it as an async context manager: whatever happens inside, nothing is left running in the engine.

    Args:
        server: shared state.
        requests: one a prompt, checked.
        texts: the prompts' texts, None for prompts given as token ids.
        receive: of the HTTP request, whose body has been read: it now reports only the disconnect.
        arrival_s: when the request came in, seconds since the epoch.
        headers: of the HTTP request, for its trace.

    Attributes:
        collectors: what has come so far, one a prompt.
        ticket: of a giver whose prefill is over.
    """

    def __init__(
        self,
        server: ServerState,
        requests: Sequence[Request],
        texts: Sequence[str | None],
        receive: Receive,
        arrival_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._requests = requests
        self._receive = receive
        self.arrival_s = arrival_s
        self._streams: list[DeltaStream] = []
        self._headers = headers
        self._metrics: list[RequestMetrics | None] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._arrived: list[tuple[int, SequenceDelta]] = []
        self._news = asyncio.Event()
        self._num_pumping = 0
        self._error: Exception | None = None
        self.ending: Ending | None = None
        self.ticket: Ticket | None = None
        self.collectors = [
            OutputCollector(
                request,
                prompt=text,
                tokenizer=server.tokenizer_or_none,
                finish=lambda _, index, place=place: self._stopped(place, index),  # type: ignore[misc]
            )
            for place, (request, text) in enumerate(zip(requests, texts, strict=True))
        ]

    async def __aenter__(self) -> Generation:
        """Submit everything.

        Raises:
            EngineDeadError: there is no engine.
        """
        self._server.num_open += 1
        if self._server.config.enable_log_requests:
            log_start(self._requests)
        try:
            self._start()
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        return self

    def _start(self) -> None:
        self._replay()
        if self.collectors[0].output.finished:
            return
        for request in self._requests:
            self._streams.append(self._server.engine.submit(request))
            self._metrics.append(self._measure(request))
            self._trace(request)
        self._tasks.append(asyncio.create_task(self._watch_client()))
        timeout_s = self._server.config.request_timeout_s
        if timeout_s is not None:
            left_s = max(0.0, timeout_s - (time.time() - self.arrival_s))
            self._deadline = asyncio.get_running_loop().call_later(left_s, self._end, Ending.DEADLINE)
        if len(self._streams) > 1:
            self._num_pumping = len(self._streams)
            self._tasks += [asyncio.create_task(self._pump(i)) for i in range(len(self._streams))]

    def _replay(self) -> None:
        """A request that resumes has one prompt and one choice; its text begins with the tokens that exist already."""
        request, collector = self._requests[0], self.collectors[0]
        if request.resumed:
            count, stop = first_stop(request, request.resumed, self._server.engine.info.max_model_len)
            reason, stop_token_id = (None, None) if stop is None else stop
            collector.replay(request.resumed[:count], reason, stop_token_id)

    def _measure(self, request: Request) -> RequestMetrics | None:
        metrics = self._server.metrics
        return None if metrics is None else metrics.start(request, arrival_s=self.arrival_s, headers=self._headers)

    def _trace(self, request: Request) -> None:
        traceparent = (self._headers or {}).get("traceparent")
        self._server.traces.start(
            request, self._server.engine.info.peer, arrival_s=self.arrival_s, traceparent=traceparent
        )

    async def __aexit__(self, *error: object) -> None:
        """Free what the request still holds in the engine."""
        self._server.num_open -= 1
        if self._deadline is not None:
            self._deadline.cancel()
        for task in self._tasks:
            task.cancel()
        for stream in self._streams:
            stream.cancel()
            self._server.traces.finish(stream.request_id, time.time())
        failed = bool(error and error[0]) and self.ending is None
        for metrics in self._metrics:
            if metrics is not None:
                metrics.finish(FinishReason.ERROR if failed else FinishReason.ABORT)
        if self._server.config.enable_log_requests:
            ending = self.ending.value if self.ending else "failed" if failed else None
            log_end([collector.output for collector in self.collectors], ending, time.time() - self.arrival_s)

    @property
    def deadline_s(self) -> float | None:
        """When the request has to be over, on the loop's clock; None: no limit."""
        return None if self._deadline is None else self._deadline.when()

    async def next(self) -> list[tuple[int, SequenceDelta]]:
        """All deltas that have arrived, as (place of the prompt, delta), at least one; empty when all has ended.

        Raises:
            RequestError: the engine refused a prompt.
            EngineDeadError: the engine is gone.
            ClientGoneError: the client is gone.
            ApiError: 504, the deadline has passed; 422 and 503, a sequence could not be completed.
        """
        if not self._streams:  # the tokens that exist already are all
            return [(0, SequenceDelta(request_id=self._requests[0].request_id, index=0))]
        batch = await (self._next_of_one() if len(self._streams) == 1 else self._next_of_many())
        if not batch and self.ending is not None:
            raise self._ended()
        for _, delta in batch:
            self.ticket = delta.ticket or self.ticket
            if delta.finish_reason is FinishReason.ERROR and delta.error is not None:
                raise ApiError(503, delta.error, retry=True)
            if delta.finish_reason is FinishReason.ERROR:
                raise ApiError(
                    422, "the grammar cannot be followed: no token continues its text, or it is too ambiguous"
                )
            if delta.finish_reason is FinishReason.ABORT:
                raise ApiError(503, "the engine ended this request before it was complete", retry=True)
        return batch

    async def finish(self, first: list[tuple[int, SequenceDelta]]) -> None:
        """Collect everything until all is complete.

        Args:
            first: what was taken already.

        Raises: as `next`.
        """
        batch = first
        while batch:
            for place, delta in batch:
                self.collectors[place].add(delta)
            if all(collector.output.finished for collector in self.collectors):
                return
            batch = await self.next()

    def _ended(self) -> Exception:
        if self.ending is Ending.CLIENT_GONE:
            return ClientGoneError()
        limit_s = self._server.config.request_timeout_s
        return ApiError(504, f"the request took longer than the server's limit of {limit_s} s")

    async def _next_of_one(self) -> list[tuple[int, SequenceDelta]]:
        stream = self._streams[0]
        try:
            first = await stream.__anext__()
        except StopAsyncIteration:
            return []
        return [(0, first), *((0, delta) for delta in stream.ready())]

    async def _next_of_many(self) -> list[tuple[int, SequenceDelta]]:
        while not self._arrived and self._num_pumping and self._error is None:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        batch, self._arrived = self._arrived, []
        return batch

    async def _pump(self, place: int) -> None:
        """Bring the deltas of one of several streams together with the others."""
        try:
            async for delta in self._streams[place]:
                self._arrived.append((place, delta))
                self._news.set()
        except Exception as error:
            self._error = error
        self._num_pumping -= 1
        self._news.set()

    async def _watch_client(self) -> None:
        """End everything as soon as the client is gone, whatever the handler waits for."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(Ending.CLIENT_GONE)

    def _end(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending
        for stream in self._streams:
            stream.cancel()

    def _stopped(self, place: int, index: int) -> None:
        """A stop string ended a sequence that the engine still runs."""
        self._streams[place].cancel(index, FinishReason.STOP)
        metrics = self._metrics[place]
        if metrics is not None:
            metrics.finish(FinishReason.STOP, index)
