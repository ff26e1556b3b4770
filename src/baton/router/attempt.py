"""One try to serve a request: its legs, in push, in pull, or by one worker alone."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from baton.core.handoff import TransferMode
from baton.obs.log import get_logger
from baton.router.body import Asked, decode_body, prefill_body, whole_body
from baton.router.desk import Desk, headers_for
from baton.router.interrupt import Interrupt
from baton.router.legs import Leg, LegError
from baton.router.merge import merge
from baton.router.progress import Progress
from baton.router.record import Attempt, RequestRecord
from baton.router.relay import First, read_first
from baton.router.shown import MismatchError
from baton.router.worker import WorkerKind, WorkerRef
from baton.web.errors import ApiError
from baton.wire.openai.errors import ErrorBody

_log = get_logger(__name__)
_TOKENS_HEADER = "x-baton-tokens"
_NOT_YET = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What is the same in every attempt of a request.

    Attributes:
        headers: that are passed on to workers.
        deadline_s: on the loop's clock.
    """

    asked: Asked
    headers: Mapping[str, str]
    record: RequestRecord
    progress: Progress
    interrupt: Interrupt
    deadline_s: float


class Try:
    """One attempt, made and run once.

    Args:
        avoid: ids of workers that failed this request.
    """

    def __init__(self, desk: Desk, trip: Trip, avoid: frozenset[str]) -> None:
        self._desk = desk
        self._trip = trip
        self._asked = trip.asked
        self._progress = trip.progress
        self._resumed = trip.progress.resumed
        self._demand = trip.progress.demand(self._resumed)
        self._avoid = avoid
        self._legs: list[Leg] = []
        self._kept_by: WorkerRef | None = None  # a prompt's KV, for a decode worker that has not got it yet
        self._attempt = Attempt(transfer_id="", mode="single", continues=trip.progress.shown.num_tokens)

    async def run(self) -> None:
        """Serve the request to its end.

        Raises:
            LegError: a worker did not do its part.
            ApiError: no worker can be had, or time is up, or the workers do not agree.
            ClientGoneError: the client left.
        """
        attempt = self._attempt
        try:
            await self._run()
            attempt.outcome = "done"
        except asyncio.CancelledError:
            cause = self._trip.interrupt.cause()
            attempt.outcome = _words(cause or asyncio.CancelledError())
            if cause is None:
                raise
            raise cause from None
        except Exception as error:
            attempt.outcome = _words(error)
            raise
        finally:
            attempt.ended_s = time.time()
            for leg in self._legs:
                leg.end()
            if self._kept_by is not None:
                self._desk.withdraw(self._kept_by, attempt.transfer_id, self._trip.headers)

    async def _run(self) -> None:
        placement = await self._desk.placer.place(self._demand, avoid=self._avoid, deadline_s=self._trip.deadline_s)
        attempt = self._attempt
        attempt.placed_s = time.time()
        self._trip.record.attempts.append(attempt)
        attempt.prefill = placement.prefill.worker_id if placement.prefill else ""
        attempt.decode = placement.decode.worker_id if placement.decode else ""
        if placement.mode is None:
            await self._alone(placement.decode or placement.prefill)
            return
        assert placement.prefill is not None
        attempt.transfer_id, attempt.mode = secrets.token_hex(16), placement.mode.value
        if placement.mode is TransferMode.PULL:
            await self._pull(placement.prefill, placement.decode)
        else:
            assert placement.decode is not None
            await self._push(placement.prefill, placement.decode)

    async def _alone(self, worker: WorkerRef | None) -> None:
        """One worker serves all of it."""
        assert worker is not None
        leg = self._leg(worker)
        body = whole_body(self._asked, self._progress.seed_for(worker), self._resumed)
        answer = await self._decoding(leg, body)
        if self._asked.wishes.stream:
            await self._pass_on(leg, answer)
        else:
            await self._answer(answer)

    async def _pull(self, giver: WorkerRef, taker: WorkerRef | None) -> None:
        """The prefill worker first. What it answers is for the decode worker, which is chosen then."""
        prefill = self._leg(giver)
        answer = await self._prefilling(prefill)
        first = self._first(prefill, answer)
        params = first.kv_transfer_params if first.has_ticket else None
        if params is None and not first.ended:  # an answer that is over has nothing to hand over
            _log.error("worker %s answered without kv_transfer_params: nothing can be handed over", giver.worker_id)
            raise prefill.failed("its answer has no kv_transfer_params; start it as a prefill worker")
        await self._progress.relay(giver, first)
        if taker is None:
            taker = await self._desk.placer.place_decode(
                self._demand, giver, avoid=self._avoid, deadline_s=self._trip.deadline_s
            )
            self._attempt.decode = taker.worker_id
        decode = self._leg(taker)
        body = decode_body(self._asked, params, self._progress.seed_for(taker))
        await self._both(decode, first, answer, await self._decoding(decode, body))

    async def _push(self, giver: WorkerRef, taker: WorkerRef) -> None:
        """Both at once. Nothing of the decode worker is shown before the prefill worker's answer, or its own token."""
        prefill, decode = self._leg(giver), self._leg(taker)
        body = decode_body(self._asked, self._source(giver), self._progress.seed_for(taker))
        giving = asyncio.create_task(self._prefilling(prefill))
        taking = asyncio.create_task(self._decoding(decode, body))
        try:
            await asyncio.wait((giving, taking), return_when=asyncio.FIRST_COMPLETED)
            if not giving.done():
                piece = taking.result()
                if self._asked.wishes.stream:
                    prefill.on_loss(lambda _: None)
                    giving.add_done_callback(lambda _: self._learn_late(prefill, giving))
                    await self._pass_on(decode, piece)
                    return
            answer = await giving
            first = self._first(prefill, answer)
            if not taking.done():
                await self._progress.relay(giver, first)
            await self._both(decode, first, answer, await taking)
        finally:
            for task in (giving, taking):
                task.cancel()
                task.add_done_callback(_look_away)

    async def _both(self, decode: Leg, first: First, prefilled: bytes, decoded: bytes) -> None:
        """Both workers have answered; of a stream, it is the first piece."""
        if self._asked.wishes.stream:
            await self._pass_on(decode, decoded)
            return
        try:
            answer = merge(self._asked, first, prefilled, decoded)
        except ValueError as error:
            raise decode.failed(str(error)) from error
        await self._answer(answer)

    async def _answer(self, answer: bytes) -> None:
        self._kept_by = None
        self._progress.count_whole(answer)
        await self._progress.client.whole(200, answer, {})

    async def _pass_on(self, leg: Leg, piece: bytes) -> None:
        """Send a stream on to the client. piece: its first."""
        attempt, client = self._attempt, self._progress.client
        attempt.landed_s = time.time()
        self._kept_by = None
        leg.landed()
        reader = self._progress.reader(leg.worker, self._resumed)
        try:
            while piece:
                out = reader.feed(piece)
                if out:
                    await client.events(out, last=reader.done)
                if reader.error is not None:
                    raise _midway(leg, reader.error)
                piece = b"" if reader.done else await leg.next()
                if piece and attempt.decoded_s is None:
                    attempt.decoded_s = time.time()
        except MismatchError as error:
            _log.error("worker %s does not go on where the answer broke off: %s", leg.worker.worker_id, error)
            raise ApiError(503, "the answer broke off, and no worker went on with it", retry=True) from error
        finally:
            self._trip.record.num_new_tokens = self._progress.shown.num_tokens or reader.num_tokens
        if not reader.done:
            raise leg.failed("its stream broke off")
        await leg.finish()

    async def _prefilling(self, leg: Leg) -> bytes:
        """The prefill worker's answer."""
        worker, transfer_id = leg.worker, self._attempt.transfer_id
        self._kept_by = worker
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id, **_NOT_YET}
        body = prefill_body(self._asked, params, self._progress.seed_for(worker))
        answer = await leg.fetch(self._asked.path, headers_for(worker, self._trip.headers), body)
        self._attempt.prefilled_s = time.time()
        return answer

    async def _decoding(self, leg: Leg, body: bytes) -> bytes:
        """The decode worker's answer, or the first piece of it."""
        headers = headers_for(leg.worker, self._trip.headers)
        if not self._asked.wishes.stream:
            return await leg.fetch(self._asked.path, headers, body)
        if self._progress.tracks and leg.worker.facts.kind is WorkerKind.BATON:
            headers = {**headers, _TOKENS_HEADER: "1"}
        await leg.open(self._asked.path, headers, body)
        return await leg.next()

    def _first(self, leg: Leg, answer: bytes) -> First:
        try:
            first = read_first(answer)
        except msgspec.DecodeError as error:
            raise leg.failed(f"its answer is none: {error}") from error
        if not first.choices:
            raise leg.failed("its answer has no choices")
        self._progress.learn(first)
        return first

    def _learn_late(self, leg: Leg, giving: asyncio.Task[bytes]) -> None:
        """The prefill worker has answered after the decode worker; only its counts are of use."""
        if giving.cancelled():
            return
        try:
            self._first(leg, giving.result())
        except LegError as error:
            _log.warning("a prefill worker failed after its prompt had arrived: %s", error)

    def _leg(self, worker: WorkerRef) -> Leg:
        desk = self._desk
        hold = desk.placer.hold(worker, self._demand, transfer_id=self._attempt.transfer_id)
        leg = Leg(desk.http, desk.lookout, worker, hold)
        leg.on_loss(self._trip.interrupt)
        self._legs.append(leg)
        return leg

    def _source(self, giver: WorkerRef) -> dict[str, Any]:
        """kv_transfer_params of the decode leg of a push: where the prompt's KV will come from."""
        peer = giver.facts.peer
        if peer is None:
            raise ApiError(503, f"it is not known how others reach the control endpoint of worker {giver.worker_id}")
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": peer.engine_id,
            "remote_request_id": self._trip.record.request_id,
            "remote_host": peer.host,
            "remote_port": peer.port,
            "tp_size": peer.tp_size,
            "pp_size": peer.pp_size,
            "transfer_id": self._attempt.transfer_id,
        }


def _midway(leg: Leg, event: bytes) -> LegError:
    """An error event inside a worker's stream."""
    body = event.removeprefix(b"data: ").strip()
    try:
        said = msgspec.json.decode(body, type=ErrorBody).error
    except msgspec.DecodeError:
        return leg.failed("its stream ended with an error")
    return leg.failed(f"said {said.code} in its stream: {said.message}", said.code, body)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _look_away(task: asyncio.Task[bytes]) -> None:
    """A leg that nobody waits for may fail."""
    if not task.cancelled():
        task.exception()
