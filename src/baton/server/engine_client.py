"""The server's view of one engine process: requests out, deltas in, one stream a request.

Nothing here waits for a consumer: a stream buffers what has arrived, however slowly it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Self

from baton.core.errors import EngineDeadError, RequestError, UserError
from baton.core.handoff import Role
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import EMPTY, TransferStats
from baton.obs.log import get_logger
from baton.wire.channel import FrontSocket
from baton.wire.engine import (
    Cancel,
    EngineInfo,
    Failed,
    FromEngine,
    Output,
    Ping,
    Ready,
    Refused,
    Stop,
    Submit,
    Withdraw,
)

_log = get_logger(__name__)
_PING_S = 0.5


class EngineState(Enum):
    """Of the engine process behind a client. DRAINING: it runs what it has and takes nothing new."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class DeltaStream:
    """What comes back for one request: an async iterator of SequenceDelta, for one consumer.

    It ends after each of the n sequences brought its finish_reason or was cancelled.

    Attributes:
        request_id: the request's.
        admitted_s: when the request left the engine's queue, in seconds since the epoch; None before.
    """

    def __init__(self, request_id: str, num_sequences: int, client: EngineClient) -> None:
        self.request_id = request_id
        self.admitted_s: float | None = None
        self._client = client
        self._open = set(range(num_sequences))
        self._arrived: deque[SequenceDelta] = deque()
        self._news = asyncio.Event()
        self._error: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SequenceDelta:
        """The next delta.

        Raises:
            RequestError: the engine refused the request.
            EngineDeadError: the engine is gone, or the server ended the request; what had arrived comes first.
        """
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._arrived.popleft()

    def ready(self) -> list[SequenceDelta]:
        """Everything that has arrived and was not taken, without waiting."""
        taken = list(self._arrived)
        self._arrived.clear()
        return taken

    def cancel(self, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End one sequence, or all: what of them has not been taken is dropped. Ended ones are ignored."""
        ended = self._open if index is None else self._open & {index}
        self._arrived = deque(d for d in self._arrived if index is not None and d.index != index)
        if ended:
            self._client._cancel(Cancel(request_id=self.request_id, index=index, reason=reason))
            self._close(frozenset(ended))

    def _push(self, delta: SequenceDelta) -> None:
        if delta.index not in self._open:
            return
        self._arrived.append(delta)
        if delta.finish_reason is None:
            self._news.set()
        else:
            self._close(frozenset((delta.index,)))

    def _close(self, ended: frozenset[int]) -> None:
        self._open -= ended
        if not self._open:
            self._client._forget(self.request_id)
        self._news.set()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._close(frozenset(self._open))


class EngineClient:
    """Talks to one engine process at a time; whoever runs that process calls `listen`, `start`, `lost` and `close`.

    All methods run on one event loop.

    Attributes:
        state: READY between a successful `start` and `lost` or `close`.
        stats, transfer_stats: as the engine said last; zeros before it did.
        info: what the engine said of itself; kept after its death.
    """

    info: EngineInfo

    def __init__(self) -> None:
        self.state = EngineState.STARTING
        self.stats, self.transfer_stats = EMPTY, TransferStats()
        self._heard_s = 0.0
        self._next_ping: asyncio.TimerHandle | None = None
        self._socket: FrontSocket | None = None
        self._streams: dict[str, DeltaStream] = {}
        self._listeners: list[Callable[[Output], None]] = []
        self._started: asyncio.Future[EngineInfo] | None = None
        self._cause = "the engine is still starting"

    @property
    def num_live(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    @property
    def num_kept_blocks(self) -> int:
        """Blocks that another engine may come for, or is getting. Of a decode engine nobody gets any."""
        peer = self.info.peer
        return 0 if peer is None or peer.role is Role.DECODE else self.stats.pinned_blocks

    @property
    def silent_s(self) -> float:
        """Seconds since the last word of a running engine, which is asked for one every half second.

        It is also silent during a long step. 0 while there is no engine: `state` says that.
        """
        return time.monotonic() - self._heard_s if self._next_ping is not None else 0.0

    def on_output(self, listener: Callable[[Output], None]) -> None:
        """Call `listener` with the output of each step, after its deltas were handed on."""
        self._listeners.append(listener)

    def listen(self) -> str:
        """Open a socket for a new engine process; returns the address to give it.

        Raises:
            ConfigError: no socket can be made.
        """
        if self._socket is not None:
            self._socket.close()
        self.state, self.stats, self.transfer_stats = EngineState.STARTING, EMPTY, TransferStats()
        self._cause = "the engine is starting; try again soon"
        self._started = asyncio.get_running_loop().create_future()
        self._socket = FrontSocket(self._receive)
        return self._socket.address

    async def start(self) -> None:
        """Wait until the engine process that got the address is ready.

        Raises:
            UserError: it could not start, and the user can mend that.
            EngineDeadError: it could not start.
        """
        assert self._started is not None, "listen() comes first"
        await self._started

    def submit(self, request: Request) -> DeltaStream:
        """Send a request to the engine.

        Args:
            request: its id must never have been used before: deltas of an ended request may still be under way.

        Raises:
            EngineDeadError: there is no engine to take it.
        """
        if self.state is not EngineState.READY or self._socket is None:
            raise EngineDeadError(self._cause)
        assert request.request_id not in self._streams, request.request_id
        stream = DeltaStream(request.request_id, request.params.n, self)
        self._streams[request.request_id] = stream
        self._socket.send(Submit(request=request))
        return stream

    def withdraw(self, transfer_id: str) -> None:
        """Tell the engine that nobody will come for what it gives under this id."""
        if self._socket is not None:
            self._socket.send(Withdraw(transfer_id=transfer_id))

    def drain(self, message: str) -> None:
        """Take no new requests: `submit` raises with this message. Live ones go on."""
        if self.state is EngineState.READY:
            self.state, self._cause = EngineState.DRAINING, message

    def abort_all(self, message: str) -> None:
        """End every stream with an EngineDeadError and tell the engine to drop the requests."""
        for request_id, stream in list(self._streams.items()):
            self._cancel(Cancel(request_id=request_id))
            stream._fail(EngineDeadError(message))

    def lost(self, message: str) -> None:
        """The engine process has ended: every stream fails with this message, which clients see.

        What the engine itself said last stands.
        """
        if self._next_ping is not None:
            self._next_ping.cancel()
            self._next_ping = None
        if self.state is not EngineState.DEAD:
            self.state, self._cause = EngineState.DEAD, message
        if self._started is not None and not self._started.done():
            self._started.set_exception(EngineDeadError(message))
            self._started.exception()  # seen: nobody has to wait for it
        for stream in list(self._streams.values()):
            stream._fail(EngineDeadError(message))

    def stop(self) -> None:
        """Ask the engine process to end now."""
        if self._socket is not None:
            self._socket.send(Stop())

    async def close(self) -> None:
        """Ask the engine process to end, fail open streams and close the socket."""
        self.stop()
        self.lost("the server has stopped")
        await asyncio.sleep(0.05)  # the socket drops what has not left
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _cancel(self, message: Cancel) -> None:
        if self._socket is not None:
            self._socket.send(message)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def _ping(self) -> None:
        assert self._socket is not None
        self._socket.send(Ping())
        self._next_ping = asyncio.get_running_loop().call_later(_PING_S, self._ping)

    def _receive(self, message: FromEngine) -> None:
        self._heard_s = time.monotonic()
        match message:
            case Output():
                self._dispatch(message)
            case Refused():
                stream = self._streams.get(message.request_id)
                if stream is not None:
                    stream._fail(RequestError(message.message, param=message.param))
            case Ready():
                self._ready(message.info)
            case Failed():
                self._failed(message)

    def _dispatch(self, output: Output) -> None:
        self.stats, self.transfer_stats = output.stats, output.transfer_stats or self.transfer_stats
        for admitted in output.admitted:
            stream = self._streams.get(admitted.request_id)
            if stream is not None:
                stream.admitted_s = admitted.time_s
        for delta in output.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream._push(delta)
        for listener in self._listeners:
            try:
                listener(output)
            except Exception:
                _log.exception("a listener of engine outputs failed")

    def _ready(self, info: EngineInfo) -> None:
        assert self._started is not None and self._socket is not None
        self._socket.forget_path()
        self.info, self.state = info, EngineState.READY
        self._next_ping = asyncio.get_running_loop().call_later(_PING_S, self._ping)
        if not self._started.done():
            self._started.set_result(info)

    def _failed(self, failed: Failed) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_exception(
                UserError(failed.message) if failed.user_error else EngineDeadError(failed.message)
            )
        self.lost(f"the engine failed: {failed.message}")
