"""A worker's event stream on its way to the client: bytes, read only where they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from baton.router.shown import Shown, Skip
from baton.router.usage import PromptUsage

_END = b"\n\n"
_DONE = b"data: [DONE]"
_ERROR = b'data: {"error"'
_CHUNK = b"data: {"
_DATA = len(b"data: ")
_CREATED = b'"created":'


class RawStream:
    """Passes pieces on as they are.

    Attributes:
        done: the stream is complete.
        error: an event that says what went wrong, instead of any chunk; None: there was none.
        num_tokens: a guess: one a chunk.
    """

    __slots__ = ("_begun", "_tail", "done", "error", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self._tail = b""
        self._begun = self.done = False
        self.error: bytes | None = None

    def feed(self, piece: bytes) -> bytes:
        """What to send of what has come."""
        if not self._begun and piece.startswith(_ERROR):
            self.error = piece.partition(_END)[0] + _END
            return b""
        self._begun = True
        self.num_tokens += piece.count(_CHUNK)
        self._tail = (self._tail + piece)[-32:] if len(piece) < 32 else piece[-32:]
        self.done = _DONE in self._tail
        return piece


class EventStream:
    """Passes events on, one by one.

    Args:
        shown: is told of all that is sent; None: nobody will go on with this answer.
        skip: what the client has already.
        usage: tells what chunks with usage have to say of the prompt; None: as the worker says.

    Attributes:
        done: the stream is complete.
        error: an event that says what went wrong; nothing that came behind it is passed on.
        num_tokens: that the events brought, those that were left out included.
    """

    __slots__ = ("_created", "_rest", "_shown", "_skip", "_usage", "done", "error", "num_tokens")

    def __init__(
        self, *, shown: Shown | None, skip: Skip | None, usage: Callable[[], PromptUsage | None] | None
    ) -> None:
        self._shown = shown
        self._skip = skip
        self._usage = usage
        self._rest = b""
        self._created: tuple[bytes, bytes] | None = None
        self.done = False
        self.error: bytes | None = None
        self.num_tokens = 0

    def feed(self, piece: bytes) -> bytes:
        """What to send of what has come; b"" for nothing yet.

        Raises:
            MismatchError: it is not what the client has.
        """
        if self._rest:
            piece = self._rest + piece
        end = piece.rfind(_END)
        if end < 0:
            self._rest = piece
            return b""
        self._rest = piece[end + 2 :]
        if piece.find(_END) == end:
            return self._event(piece[: end + 2])
        return b"".join(self._events(piece[:end].split(_END)))

    def _events(self, events: Iterable[bytes]) -> Iterable[bytes]:
        for event in events:
            yield self._event(event + _END)

    def _event(self, event: bytes) -> bytes:
        if self.done or self.error is not None:
            return b""
        ids, num_ids = b"", 0
        if event.startswith(b": "):
            end = event.index(b"\n")
            ids = event[2:end].partition(b" ")[2]
            num_ids = ids.count(b" ") + 1 if ids else 0
            event = event[end + 1 :]
        self.num_tokens += num_ids
        if event.startswith(_DONE):
            self.done = True
            return event
        if event.startswith(_ERROR):
            self.error = event
            return b""
        return self._chunk(event, ids, num_ids)

    def _chunk(self, event: bytes, ids: bytes, num_ids: int) -> bytes:
        num_new = num_ids
        if self._skip is not None:
            event, ids, num_new = self._skipping(self._skip, event, ids, num_ids)
            if not event:
                return b""
        if self._created is not None:
            event = event.replace(*self._created, 1)
        if self._usage is not None and b'"usage"' in event and (known := self._usage()) is not None:
            event = known.put_into(event)
        if self._shown is not None:
            self._shown.add(event, ids, num_new)
        return event

    def _skipping(self, skip: Skip, event: bytes, ids: bytes, num_ids: int) -> tuple[bytes, bytes, int]:
        """The event without what the client has, and the ids that are new."""
        created = _created_of(event)
        if skip.created and created != skip.created:
            self._created = (_CREATED + created, _CREATED + skip.created)
        num_old = min(num_ids, skip.num_tokens)
        event = skip.apply(event, num_ids)
        words = ids.split(b" ") if ids else []
        if self._shown is not None and num_old and not self._shown.resumable:
            self._shown.learn(b" ".join(words[:num_old]))
        if skip.over:
            self._skip = None
        return event, b" ".join(words[num_old:]), num_ids - num_old


def _created_of(event: bytes) -> bytes:
    """The number behind the first "created" of a chunk of our servers; b"" where there is none."""
    _, found, rest = event.partition(_CREATED)
    return rest[: rest.find(b",")] if found else b""
