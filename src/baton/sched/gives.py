"""Requests whose prompt goes to another engine: which blocks it may have, how far they are final, the first tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.cache.manager import CacheManager
from baton.core.exchange import Announce, Command, FirstToken, Grant, Prefilled, Progress, Withdraw
from baton.core.handoff import Handoff, Ticket, prompt_digest
from baton.core.request import FinishReason, Request, TokenLogprobs
from baton.sched.pins import Pins
from baton.sched.sequence import Sequence
from baton.sched.status import Status

_REASONS = {
    FinishReason.ABORT: "the request was aborted at the giver",
    FinishReason.ERROR: "the request failed at the giver: its grammar cannot be followed",
}


@dataclass(slots=True, eq=False, kw_only=True)
class _Give:
    """One request that gives.

    Attributes:
        awaited: sequences whose first token is not known and will go along.
        open: the transfer has neither all it needs nor failed: commands may follow.
        holder, run: the sequence, and its run, whose blocks are granted; None: nothing is granted.
        num_final: tokens of the grant that are final.
        moved: num_final has grown since the transfer thread was last told.
    """

    handoff: Handoff
    num_tokens: int
    awaited: set[int]
    first_tokens: list[FirstToken] = field(default_factory=list)
    open: bool = True
    holder: Sequence | None = None
    run: int = 0
    pin: int | None = None
    block_ids: tuple[int, ...] = ()
    num_final: int = 0
    moved: bool = False


class Gives:
    """The giver's half of all hand-offs of one scheduler.

    The blocks of the first sequence that runs are granted. Whatever happens to it once its prompt is planned to the
    end, the grant stays: steps in flight will complete it.

    Args:
        commands: where commands for the transfer thread go.
    """

    def __init__(self, cache: CacheManager, pins: Pins, commands: list[Command]) -> None:
        self._cache = cache
        self._pins = pins
        self._commands = commands
        self._gives: dict[str, _Give] = {}  # by request_id
        self._pinned: dict[int, str] = {}  # pin -> transfer_id

    def knows(self, transfer_id: str) -> bool:
        """Whether the transfer is that of a live request, or still holds blocks."""
        live = any(give.handoff.transfer_id == transfer_id for give in self._gives.values())
        return live or transfer_id in self._pinned.values()

    def open(self, request: Request, handoff: Handoff) -> None:
        """The request is queued."""
        num_tokens, awaited = len(request.prompt_token_ids), set(range(request.params.n))
        self._gives[request.request_id] = _Give(handoff=handoff, num_tokens=num_tokens, awaited=awaited)
        self._commands.append(Announce(transfer_id=handoff.transfer_id))

    def started(self, seq: Sequence, num_hit_tokens: int) -> None:
        """A sequence was admitted, and its table covers the prompt."""
        give = self._gives.get(seq.request.request_id)
        if give is None or not give.open or give.holder is not None:
            return
        give.block_ids = self._cache.table(seq.key)[: self._cache.blocks_for(give.num_tokens)]
        give.holder, give.run, give.num_final, give.moved = seq, seq.run, num_hit_tokens, False
        give.pin = self._pins.pin(give.block_ids)
        self._pinned[give.pin] = give.handoff.transfer_id
        self._commands.append(
            Grant(
                pin=give.pin,
                transfer_id=give.handoff.transfer_id,
                block_ids=give.block_ids,
                num_tokens=give.num_tokens,
                prompt_digest=prompt_digest(seq.request.prompt_token_ids),
                num_final_tokens=num_hit_tokens,
            )
        )

    def left_out(self, seq: Sequence) -> None:
        """A sibling has to queue: its first token will not go along.

        Waiting for it would keep the blocks pinned until there is room for it, and they may be what room there is.
        """
        give = self._gives.get(seq.request.request_id)
        if give is not None:
            give.awaited.discard(seq.index)

    def preempted(self, seq: Sequence) -> None:
        """A sequence is about to lose its blocks, and will come back."""
        self._interrupt(seq, "the prefill was preempted")

    def ended(self, seq: Sequence, reason: FinishReason) -> None:
        """A sequence is about to end, and to lose the blocks it may hold."""
        give = self._gives.get(seq.request.request_id)
        if give is None:
            return
        give.awaited.discard(seq.index)
        if give.awaited or give.first_tokens:
            self._interrupt(seq, "the prefilling sequence has ended; a sibling takes over")
        elif give.open:
            why = _REASONS.get(reason, f"the request ended at the giver: {reason.value}")
            self._withdraw(give, why, again=False)
        self._conclude(give)

    def _interrupt(self, seq: Sequence, reason: str) -> None:
        """If the prompt is not planned to its end, another sequence, or another run, will grant other blocks."""
        give = self._gives.get(seq.request.request_id)
        if give is None or not give.open or give.holder is not seq:
            return
        if seq.status is Status.RUNNING and seq.run == give.run and seq.num_planned_tokens < give.num_tokens:
            self._withdraw(give, reason, again=True)

    def _withdraw(self, give: _Give, reason: str, *, again: bool) -> None:
        if give.pin is not None:
            self._pins.withdraw(give.pin)
        give.holder = give.pin = None
        give.open = again
        self._commands.append(Withdraw(transfer_id=give.handoff.transfer_id, reason=reason, again=again))

    def give_up(self, transfer_id: str) -> None:
        """Nobody will come for this transfer."""
        reason = "the hand-off was given up from outside"
        for give in self._gives.values():
            if give.open and give.handoff.transfer_id == transfer_id:
                self._withdraw(give, reason, again=False)
                return
        if transfer_id in self._pinned.values():
            self._commands.append(Withdraw(transfer_id=transfer_id, reason=reason))

    def computed(self, seq: Sequence, run: int, num_tokens: int) -> None:
        """A step has completed: num_tokens of the sequence, in this run, are written."""
        give = self._gives.get(seq.request.request_id)
        if give is None or not give.open or give.holder is not seq or give.run != run:
            return
        final = min(num_tokens, give.num_tokens)
        give.moved |= final > give.num_final
        give.num_final = max(give.num_final, final)

    def sampled(self, seq: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """An output is known. Only the first of each sequence counts."""
        give = self._gives.get(seq.request.request_id)
        if give is not None and seq.index in give.awaited:
            give.awaited.remove(seq.index)
            give.first_tokens.append(FirstToken(index=seq.index, token_id=token, logprobs=logprobs))
            self._conclude(give)

    def _conclude(self, give: _Give) -> None:
        """All first tokens that will ever come are known: the transfer has what it needs."""
        if not give.open or give.awaited or not give.first_tokens:
            return
        assert give.num_final == give.num_tokens, f"first tokens at {give.num_final} of {give.num_tokens} tokens"
        give.open = False
        first_tokens = tuple(sorted(give.first_tokens, key=lambda first: first.index))
        self._commands.append(Prefilled(transfer_id=give.handoff.transfer_id, first_tokens=first_tokens))

    def tell_progress(self) -> None:
        """A step is committed: say what it made final, where more is to come."""
        for give in self._gives.values():
            if give.moved and give.open:
                self._commands.append(Progress(transfer_id=give.handoff.transfer_id, num_final_tokens=give.num_final))
            give.moved = False

    def ticket(self, seq: Sequence) -> Ticket | None:
        """What the last delta of sequence 0 carries; None if this is no such sequence."""
        give = self._gives.get(seq.request.request_id)
        if give is None or seq.index != 0:
            return None
        return Ticket(transfer_id=give.handoff.transfer_id, num_tokens=give.num_tokens, block_ids=give.block_ids)

    def settled(self, pin: int) -> None:
        """The transfer has let go of a pin. If that is the current one, it is over for good."""
        transfer_id = self._pinned.pop(pin, None)
        for give in self._gives.values() if transfer_id is not None else ():
            if give.pin == pin:
                give.open, give.pin = False, None

    def close(self, request_id: str) -> None:
        """The request has ended."""
        give = self._gives.pop(request_id, None)
        assert give is None or not give.open, f"{request_id} has ended and its transfer is open"
