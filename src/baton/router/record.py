"""What happened to each request: one record, filled on its way and kept for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_KEPT = 512


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try to serve a request. Times are seconds since the epoch on the router's clock; None: did not come to it.

    Attributes:
        transfer_id: "" when one worker serves it whole.
        mode: "push", "pull" or "single".
        prefill, decode: ids of workers; "" for none.
        placed_s: its workers were chosen (in pull: the first of them).
        prefilled_s: the prefill leg was answered: prefill is over, token 1 is known.
        landed_s: the decode leg sent its first token: the KV has arrived there.
        decoded_s: the decode leg sent what followed: its first step is over.
        outcome: "done", or in a few words what went wrong.
        continues: tokens that the client had from earlier attempts.
    """

    transfer_id: str
    mode: str
    prefill: str = ""
    decode: str = ""
    placed_s: float = 0.0
    prefilled_s: float | None = None
    landed_s: float | None = None
    decoded_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""
    continues: int = 0


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request of a client.

    Attributes:
        status: of the HTTP answer; 0 while there is none, 499 when the client left first.
        error: one line, "" when all went well; may be set with status 200 (an error event inside the stream).
        first_token_s: the first piece of the answer was given to the client's socket.
        relayed: that piece came from the prefill worker.
    """

    request_id: str
    path: str
    model: str = ""
    stream: bool = False
    arrival_s: float
    attempts: list[Attempt] = field(default_factory=list)
    status: int = 0
    error: str = ""
    first_token_s: float | None = None
    relayed: bool = False
    ended_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_new_tokens: int = 0


class Journal:
    """Requests that run, and the latest that ended. Used on one event loop."""

    def __init__(self, kept: int = _KEPT) -> None:
        self.live: dict[int, RequestRecord] = {}
        self.ended: deque[RequestRecord] = deque(maxlen=kept)
        self._on_end: list[Callable[[RequestRecord], None]] = []

    def start(self, record: RequestRecord) -> None:
        """A request has come."""
        self.live[id(record)] = record

    def finish(self, record: RequestRecord) -> None:
        """It is over; `record` is complete."""
        del self.live[id(record)]
        self.ended.append(record)
        for listener in self._on_end:
            listener(record)

    def on_end(self, listener: Callable[[RequestRecord], None]) -> None:
        """Tell `listener` of every request that ends."""
        self._on_end.append(listener)

    def recent(self) -> Iterable[RequestRecord]:
        """The latest first: those that run, then those that ended."""
        yield from sorted(self.live.values(), key=lambda record: -record.arrival_s)
        yield from reversed(self.ended)
