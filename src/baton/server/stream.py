"""From deltas to events: the loop that both endpoints stream with."""

from __future__ import annotations

from collections.abc import AsyncIterator
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


async def events(generation: Generation, first: Batch, writer: Writer, interval: int) -> AsyncIterator[bytes]:
    """The events of an answer; what arrived together is sent together.

    Args:
        first: what has been taken from the generation already.
        interval: tokens of a choice that share a chunk.
    """
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
                out += [event(chunk) for chunk in writer.chunks(choice, piece, ticket)]
        if out:
            yield out[0] if len(out) == 1 else b"".join(out)
        batch = await generation.next() if num_open else []
    usage = writer.usage_chunk()
    if usage is not None:
        yield event(usage)
