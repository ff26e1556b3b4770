"""From deltas to events: the loop that both endpoints stream with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from baton.core.handoff import Ticket
from baton.core.request import SequenceDelta
from baton.server.choice import Choice, Piece, choices_of
from baton.server.generation import Generation
from baton.web.sse import event

Batch = list[tuple[int, SequenceDelta]]


class Writer(Protocol):
    """Encodes the chunks of one endpoint."""

    def chunks(self, choice: Choice, piece: Piece, ticket: Ticket | None) -> list[bytes]:
        """JSON of the chunks that show a piece; may be none. ticket: to be shown in the last of them."""

    def usage_chunk(self) -> bytes | None:
        """JSON of the chunk behind all others, if the client asked for one."""


async def events(
    generation: Generation, first: Batch, writer: Writer, interval: int, *, shows_tokens: bool = False
) -> AsyncIterator[bytes]:
    """The events of an answer; what arrived together is sent together.

    Args:
        first: what has been taken from the generation already.
        interval: tokens of a choice that share a chunk.
        shows_tokens: put a comment before each chunk of a choice: `TokenComments`.
    """
    comments = TokenComments() if shows_tokens else None
    choices = choices_of(generation.collectors)
    num_each = len(choices) // len(generation.collectors)
    num_open = len(choices)
    batch = first
    while batch:
        touched: dict[int, Choice] = {}
        for place, delta in batch:
            generation.collectors[place].add(delta)
            position = place * num_each + delta.index
            touched[position] = choices[position]
        out: list[bytes] = []
        for choice in touched.values():
            if choice.due(interval):
                piece = choice.take()
                num_open -= choice.done
                ticket = None if num_open else generation.ticket
                chunks = writer.chunks(choice, piece, ticket)
                out += (
                    [event(chunk) for chunk in chunks] if comments is None else comments.events(piece, choice, chunks)
                )
        if out:
            yield out[0] if len(out) == 1 else b"".join(out)
        batch = await generation.next() if num_open else []
    usage = writer.usage_chunk()
    if usage is not None:
        yield event(usage)


class TokenComments:
    """Tells in comments, which clients of event streams do not see, which tokens are behind each chunk.

    An event is then `: INDEX ID ID ...` and the chunk's `data:` below it. The ids of a piece stand at its last chunk;
    those of a piece that shows nothing, at the next chunk of its choice. So who has seen k ids of a choice has seen all
    that those tokens show so far.
    """

    def __init__(self) -> None:
        self._unshown: dict[int, list[int]] = {}

    def events(self, piece: Piece, choice: Choice, chunks: Sequence[bytes]) -> list[bytes]:
        """The events of a piece."""
        ids = self._unshown.pop(choice.position, []) + piece.token_ids
        if not chunks:
            self._unshown[choice.position] = ids
            return []
        index = str(choice.position)
        *others, last = (event(chunk) for chunk in chunks)
        return [*(_comment(index) + each for each in others), _comment(index, *map(str, ids)) + last]


def _comment(*words: str) -> bytes:
    return f": {' '.join(words)}\n".encode()
