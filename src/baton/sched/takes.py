"""Requests whose prompt comes from another engine: what is expected, and what is reserved for it."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.exchange import Command, Expect, Forgo, Reserve
from baton.core.handoff import Handoff, PeerAddress, prompt_digest
from baton.sched.pins import Pins
from baton.sched.sequence import Sequence


@dataclass(slots=True, eq=False)
class _Take:
    """One transfer that is waited for. leader: the sequence that reserves, or has reserved, blocks for it."""

    source: PeerAddress
    leader: Sequence


class Takes:
    """The taker's half of all hand-offs of one scheduler.

    Args:
        commands: where commands for the transfer thread go.
    """

    def __init__(self, pins: Pins, commands: list[Command]) -> None:
        self._pins = pins
        self._commands = commands
        self._takes: dict[str, _Take] = {}  # by transfer_id
        self._pinned: dict[int, str] = {}  # pin -> transfer_id

    def knows(self, transfer_id: str) -> bool:
        """Whether the transfer is that of a live request, or still holds blocks."""
        return transfer_id in self._takes or transfer_id in self._pinned.values()

    def open(self, leader: Sequence, handoff: Handoff) -> None:
        """The request is queued."""
        assert handoff.source is not None
        self._takes[handoff.transfer_id] = _Take(handoff.source, leader)
        leader.awaits_kv = True
        self._commands.append(Expect(transfer_id=handoff.transfer_id, source=handoff.source, mode=handoff.mode))

    def reserve(self, leader: Sequence, block_ids: tuple[int, ...], num_cached_tokens: int) -> None:
        """The leader's blocks from num_cached_tokens on are open to the transfer."""
        transfer_id = _transfer_id(leader)
        pin = self._pins.pin(block_ids)
        self._pinned[pin] = transfer_id
        self._commands.append(
            Reserve(
                pin=pin,
                transfer_id=transfer_id,
                source=self._takes[transfer_id].source,
                block_ids=block_ids,
                num_tokens=leader.num_prompt_tokens,
                prompt_digest=prompt_digest(leader.request.prompt_token_ids),
                num_cached_tokens=num_cached_tokens,
            )
        )

    def inherit(self, leader: Sequence, heir: Sequence) -> None:
        """A sibling takes the leader's place."""
        self._takes[_transfer_id(leader)].leader = heir
        leader.awaits_kv, heir.awaits_kv = False, True

    def end(self, transfer_id: str) -> Sequence | None:
        """The transfer has landed or failed. Returns its leader; None if nobody waits for it any more."""
        take = self._takes.pop(transfer_id, None)
        if take is None:
            return None
        take.leader.awaits_kv = False
        return take.leader

    def forgo(self, handoff: Handoff) -> None:
        """The request has ended. If it was still waiting, its transfer is not wanted any more."""
        if self.end(handoff.transfer_id) is not None:
            self._commands.append(Forgo(transfer_id=handoff.transfer_id))

    def settled(self, pin: int) -> None:
        """The transfer has let go of a pin."""
        self._pinned.pop(pin, None)


def _transfer_id(seq: Sequence) -> str:
    assert seq.request.handoff is not None
    return seq.request.handoff.transfer_id
