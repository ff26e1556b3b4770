"""One leg: one request to one worker, from its hold on it to the outcome that the fleet is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baton.router.http import Http, HttpError, Incoming
from baton.router.interrupt import Lookout
from baton.router.placing import Hold
from baton.router.worker import Outcome, WorkerRef

_BUSY = (429, 503)
_NOT_AGAIN = 504  # the worker's own time limit is over; another would take as long


class LegError(Exception):
    """A leg that ended without its answer.

    Attributes:
        worker_id: whose leg it was.
        status, body, headers: of the worker's answer; status 0 when it gave none.
        again: another worker, or the same one later, may do better.
    """

    def __init__(
        self,
        worker_id: str,
        message: str,
        outcome: Outcome,
        *,
        status: int = 0,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{worker_id}: {message}")
        self.worker_id = worker_id
        self.status = status
        self.body = body
        self.headers = headers or {}
        self.again = outcome in (Outcome.BUSY, Outcome.FAILED) and status != _NOT_AGAIN


class Leg:
    """A request to a worker. End it: whatever has not ended by then is cancelled, and its connection closed.

    Args:
        hold: of the worker, released at the end.
    """

    __slots__ = ("_hold", "_http", "_incoming", "_lookout", "worker")

    def __init__(self, http: Http, lookout: Lookout, worker: WorkerRef, hold: Hold) -> None:
        self._http = http
        self._lookout = lookout
        self._hold = hold
        self._incoming: Incoming | None = None
        self.worker = worker

    def on_loss(self, call: Callable[[LegError], None]) -> None:
        """Call this, instead of what was said before, when the worker is known to be gone, or is already."""
        self._lookout.add(self._hold.lost, self, lambda: call(self.failed("it is lost")))

    async def open(self, path: str, headers: Mapping[str, str], body: bytes) -> Incoming:
        """Send it; returns when an answer of status 200 begins.

        Raises:
            LegError: no answer, or another one.
        """
        try:
            incoming = self._incoming = await self._http.open(
                "POST", self.worker.url + path, headers=headers, body=body
            )
            if incoming.status == 200:
                return incoming
            raise self._refusal(incoming, await incoming.rest())
        except HttpError as error:
            raise self.failed(str(error)) from error

    async def fetch(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The whole answer. Raises as `open`."""
        incoming = await self.open(path, headers, body)
        try:
            answer = await incoming.rest()
        except HttpError as error:
            raise self.failed(str(error)) from error
        self.done()
        return answer

    async def next(self) -> bytes:
        """The next piece of the answer that was opened; b"" at its end.

        Raises:
            LegError: it broke off.
        """
        assert self._incoming is not None
        try:
            return await self._incoming.next()
        except HttpError as error:
            raise self.failed(str(error)) from error

    async def finish(self) -> None:
        """The stream said that it is complete: only its end is left, and then its connection can serve others."""
        assert self._incoming is not None
        try:
            while await self._incoming.next():
                pass
        except HttpError:
            pass
        self.done()

    def done(self) -> None:
        """It has brought all that was asked."""
        self._end(Outcome.DONE)

    def end(self) -> None:
        """Nobody waits for it any more. After `done`, or after an error, this does nothing."""
        self._end(Outcome.CANCELLED)

    def landed(self) -> None:
        """Its KV has arrived from elsewhere."""
        self._hold.landed()

    def failed(self, message: str, status: int = 0, body: bytes = b"") -> LegError:
        """End it because of what it brought; the error to raise.

        Args:
            status, body: of an error that came after the head of the answer.
        """
        return self._failure(message, status, body)

    def _refusal(self, incoming: Incoming, body: bytes) -> LegError:
        names = ("content-type", "retry-after")
        headers = {name: value for name in names if (value := incoming.header(name)) is not None}
        return self._failure(f"answered {incoming.status}", incoming.status, body, headers)

    def _failure(
        self, message: str, status: int = 0, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> LegError:
        outcome = outcome_of(status)
        self._end(outcome, message)
        return LegError(self.worker.worker_id, message, outcome, status=status, body=body, headers=headers)

    def _end(self, outcome: Outcome, error: str = "") -> None:
        self._lookout.remove(self._hold.lost, self)
        self._hold.release(outcome, error)
        if self._incoming is not None:
            self._incoming.close()


def outcome_of(status: int) -> Outcome:
    """What an answer that is none says of its worker. status: 0 when it broke off, or did not come."""
    if status in _BUSY:
        return Outcome.BUSY
    return Outcome.REFUSED if 300 <= status < 500 else Outcome.FAILED
