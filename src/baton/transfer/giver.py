"""The prefill side of all hand-offs: matches grants with reservations, keeps leases, ends each transfer once.

Deterministic: no thread, no socket, no clock of its own. What moves the bytes is a connector, `push.Pusher` or
`pull.Offerer`: the taker's reservation says which.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.core.exchange import (
    Announce,
    Event,
    FirstToken,
    GiverCommand,
    Grant,
    Prefilled,
    Progress,
    Settled,
    TransferRecord,
    Withdraw,
)
from baton.core.handoff import TransferMode
from baton.transfer.agent import Ended
from baton.transfer.ended import EndedTransfers, Ending
from baton.transfer.flights import Cost, Flights
from baton.transfer.link import Control, Link
from baton.wire.handoff import (
    Alive,
    Cancel,
    Cancelled,
    Expired,
    Fail,
    FromTaker,
    Gone,
    NotNeeded,
    Reserving,
    Taken,
)

_GIVEN_UP = {NotNeeded: Ending.NOT_NEEDED, Cancel: Ending.CANCELLED, Taken: Ending.SENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class GiverConfig:
    """Limits of a giver.

    Attributes:
        rank: of this worker.
        lease_s: how long finished prompts are kept for a silent taker, and reservations for an unknown prefill.
        max_unmatched: reservations that wait for an unknown prefill; one more is answered Gone.
    """

    rank: int = 0
    lease_s: float = 30.0
    max_unmatched: int = 4096

    @property
    def memory_s(self) -> float:
        """How long ended transfers are remembered."""
        return 3 * self.lease_s


@dataclass(frozen=True, slots=True)
class Claim:
    """A taker's reservation."""

    link: Link
    wanted: Reserving


@dataclass(slots=True, eq=False)
class Giving:
    """One transfer on the giver's side.

    Attributes:
        announced: a request here will prefill it.
        grant: the current blocks; None before admission and after a preemption.
        num_final_tokens: of the grant, how far it may be posted.
        first_tokens: None while prefill runs.
        posted_tokens: tokens before this one are posted or were never asked for.
        last_posted: everything is posted, Done (or the offer) included.
        early_bytes: posted before prefill ended.
        deadline_s: when the lease (or an unmatched reservation) ends; None: prefill is under way, no lease yet.
        ending: set once nothing more may be posted.
        reason: of a failure, or why nobody waits any longer.
        pins: not settled yet; the current grant's last.
    """

    transfer_id: str
    announced: bool = False
    grant: Grant | None = None
    num_final_tokens: int = 0
    first_tokens: tuple[FirstToken, ...] | None = None
    prefilled_s: float = 0.0
    claim: Claim | None = None
    posted_tokens: int = 0
    last_posted: bool = False
    early_bytes: int = 0
    deadline_s: float | None = None
    ending: Ending | None = None
    reason: str = ""
    pins: list[int] = field(default_factory=list)

    def is_claimed_by(self, engine_id: str) -> bool:
        """Whether this taker has reserved it."""
        return self.claim is not None and self.claim.link.engine_id == engine_id

    @property
    def is_pulled(self) -> bool:
        """Whether the taker reads, and says when it has: only then is the transfer over."""
        return self.claim is not None and self.claim.wanted.mode is TransferMode.PULL

    @property
    def is_offered(self) -> bool:
        """Whether the taker may be reading now."""
        return self.last_posted and self.is_pulled

    def is_claimed_by_another(self, engine_id: str) -> bool:
        """Whether some taker has, and it is not this one."""
        return self.claim is not None and self.claim.link.engine_id != engine_id


class GiveConnector(Protocol):
    """Moves what can be moved."""

    def advance(self, giving: Giving) -> None:
        """Grant or reservation have changed, or a post has ended. Sets `last_posted` when nothing is left to start.

        Raises:
            AgentError: a post was refused.
            BlocksError: the reservation does not fit.
        """


class Giver:
    """See the module.

    Args:
        connectors: `push.Pusher` and `pull.Offerer`, or one of them, over the same flights.

    Attributes:
        events: for the scheduler, in order; whoever drives the giver takes them.
        losses: transfers that failed or expired since, and why; whoever drives the giver takes them too.
        num_expired, num_late: since the start.
        failures: by kind of cause.
    """

    def __init__(
        self,
        config: GiverConfig,
        control: Control,
        flights: Flights,
        connectors: Mapping[TransferMode, GiveConnector],
    ) -> None:
        self.events: list[Event] = []
        self.losses: list[tuple[str, str]] = []
        self.num_expired = 0
        self.num_late = 0
        self.failures: Counter[str] = Counter()
        self._config = config
        self._control = control
        self._flights = flights
        self._clock = flights.clock
        self._connectors = connectors
        self._givings: dict[str, Giving] = {}
        self._ended = EndedTransfers(config.memory_s)

    # What the scheduler says.

    def command(self, command: GiverCommand) -> None:
        """Take a command of the scheduler."""
        match command:
            case Announce():
                if self._ended.get(command.transfer_id) is None:
                    self._announce(self._giving(command.transfer_id))
            case Grant():
                self._grant(command)
            case Progress():
                self._progress(command)
            case Prefilled():
                self._prefilled(command)
            case Withdraw():
                self._withdraw(command)

    def _announce(self, giving: Giving) -> None:
        giving.announced = True
        if giving.first_tokens is None:
            giving.deadline_s = None

    def _grant(self, grant: Grant) -> None:
        if self._ended.get(grant.transfer_id) is not None:
            self.events.append(Settled(pin=grant.pin))
            return
        giving = self._giving(grant.transfer_id)
        self._announce(giving)
        giving.grant = grant
        giving.pins.append(grant.pin)
        giving.num_final_tokens = grant.num_final_tokens
        # After a preemption: what the prefix cache still holds was sent as it is; the rest is computed anew.
        giving.posted_tokens = min(giving.posted_tokens, grant.num_final_tokens)
        self._check_claim(giving)
        self._advance(giving)

    def _progress(self, progress: Progress) -> None:
        giving = self._givings.get(progress.transfer_id)
        if giving is None or giving.grant is None:
            return
        assert giving.num_final_tokens <= progress.num_final_tokens <= giving.grant.num_tokens, progress
        giving.num_final_tokens = progress.num_final_tokens
        self._advance(giving)

    def _prefilled(self, prefilled: Prefilled) -> None:
        giving = self._givings.get(prefilled.transfer_id)
        if giving is None or giving.grant is None:
            return
        giving.first_tokens = prefilled.first_tokens
        giving.prefilled_s = self._clock()
        giving.deadline_s = self._clock() + self._config.lease_s
        self._advance(giving)

    def _withdraw(self, withdraw: Withdraw) -> None:
        giving = self._givings.get(withdraw.transfer_id)
        if giving is None:
            if not withdraw.again:
                self._ended.add(withdraw.transfer_id, Ending.FAILED, self._clock())
            return
        if not withdraw.again and giving.is_offered:
            return  # the taker may be reading: its word, or the end of the lease, frees the blocks
        giving.grant = None
        if withdraw.again:
            self._settle_idle_pins(giving)
        else:
            self._fail(giving, "withdrawn", withdraw.reason)

    # What takers say.

    def from_taker(self, link: Link, message: FromTaker) -> None:
        """Take an authentic message of a linked taker."""
        match message:
            case Reserving():
                self._reserving(link, message)
            case NotNeeded() | Cancel() | Taken():
                self._give_up(link, message)
            case Alive():
                self._renew(link, message.transfer_ids)
            case _:
                self.num_late += 1

    def _reserving(self, link: Link, wanted: Reserving) -> None:
        ended = self._ended.get(wanted.transfer_id)
        if ended is not None:
            self._answer_ended(link, wanted.transfer_id, ended)
            return
        known = self._givings.get(wanted.transfer_id)
        if known is None and self.num_unmatched >= self._config.max_unmatched:
            self._control.send(link.engine_id, Gone(transfer_id=wanted.transfer_id))
            return
        giving = known or self._giving(wanted.transfer_id)
        if giving.claim is not None:
            self._claimed_again(giving, link, wanted)
            return
        giving.claim = Claim(link, wanted)
        giving.posted_tokens = wanted.num_cached_tokens
        if giving.deadline_s is not None or not giving.announced:
            giving.deadline_s = self._clock() + self._config.lease_s
        self._check_claim(giving)
        self._advance(giving)

    def _answer_ended(self, link: Link, transfer_id: str, ended: Ending) -> None:
        """A reservation came too late. One that was sent needs no answer: its Done is there or under way."""
        if ended is Ending.EXPIRED:
            self._control.send(link.engine_id, Expired(transfer_id=transfer_id))
        elif ended is not Ending.SENT:
            self._control.send(link.engine_id, Gone(transfer_id=transfer_id))
        self.num_late += 1

    def _claimed_again(self, giving: Giving, link: Link, wanted: Reserving) -> None:
        """The same reservation again asks for a lost answer at most; any other is foreign."""
        assert giving.claim is not None
        if giving.is_claimed_by(link.engine_id) and giving.claim.wanted == wanted:
            giving.claim = Claim(link, wanted)
            giving.last_posted &= not giving.is_pulled
            self._advance(giving)
            return
        self.num_late += 1
        if giving.is_claimed_by_another(link.engine_id):
            reason = f"transfer {giving.transfer_id} is reserved by another engine"
            self._control.send(link.engine_id, self._failure(giving.transfer_id, reason))

    def _check_claim(self, giving: Giving) -> None:
        """Refuse a reservation that does not belong to this prompt; `_advance` sends the refusal."""
        claim, grant = giving.claim, giving.grant
        if claim is None:
            return
        if claim.wanted.mode not in self._connectors:
            known = ", ".join(mode.value for mode in self._connectors)
            giving.ending = Ending.FAILED
            giving.reason = f"the taker wants to {claim.wanted.mode.value}, and the giver works by {known}"
            self.failures["transfer mode"] += 1
            return
        if grant is None:
            return
        here, there = grant.num_tokens, claim.wanted.num_tokens
        if here == there and grant.prompt_digest == claim.wanted.prompt_digest:
            return
        giving.ending = Ending.FAILED
        giving.reason = f"the taker means another prompt: it has {there} tokens, the giver's has {here}"
        self.failures["prompt differs"] += 1

    def _give_up(self, link: Link, message: NotNeeded | Cancel | Taken) -> None:
        """The taker needs nothing more: stop, drain, free."""
        giving = self._givings.get(message.transfer_id)
        foreign = giving is not None and giving.is_claimed_by_another(link.engine_id)
        idle = foreign or giving is None or giving.claim is None  # nothing was ever posted to this taker
        if giving is None:
            self._ended.add(message.transfer_id, Ending.CANCELLED, self._clock())
        elif foreign:
            self.num_late += 1
        elif giving.ending is None:
            giving.ending = _GIVEN_UP[type(message)]
            self._finish(giving)
        if isinstance(message, Cancel) and idle:
            self._control.send(link.engine_id, Cancelled(transfer_id=message.transfer_id, rank=self._config.rank))

    def _renew(self, link: Link, transfer_ids: Sequence[str]) -> None:
        for transfer_id in transfer_ids:
            giving = self._givings.get(transfer_id)
            if giving is None or giving.deadline_s is None or giving.first_tokens is None:
                continue
            if not giving.is_claimed_by_another(link.engine_id):
                giving.deadline_s = max(giving.deadline_s, self._clock() + self._config.lease_s)

    def taker_lost(self, engine_id: str, reason: str) -> None:
        """Nobody will come for what this taker reserved: free it when nothing of it is in flight.

        What was offered stays until its lease ends: the taker may be reading it.
        """
        for giving in list(self._givings.values()):
            if giving.is_claimed_by(engine_id) and not giving.is_offered:
                self._fail(giving, "taker lost", f"the taker {engine_id} was lost: {reason}")

    # What the agent and the clock say.

    def ended(self, ended: Ended) -> bool:
        """A post is over. Returns False if it was not this giver's."""
        transfer_id = self._flights.ended(ended)
        if transfer_id is None:
            return False
        giving = self._givings[transfer_id]
        if ended.error is not None:
            self._fail(giving, "transfer", f"the transfer failed: {ended.error}")
        else:
            self._advance(giving)
        return True

    def tick(self) -> None:
        """End leases that are over. Looks at every one: a live one says nothing about the next."""
        now = self._clock()
        for giving in list(self._givings.values()):
            if giving.deadline_s is None or giving.ending is not None or now < giving.deadline_s:
                continue
            if not self._flights.pins(giving.transfer_id):
                self._expire(giving)
        self._ended.forget(now)

    def _expire(self, giving: Giving) -> None:
        if giving.announced:
            giving.ending = Ending.EXPIRED
            giving.reason = f"its lease of {self._config.lease_s:g} s ended, and nobody had taken it"
            self.num_expired += 1
        else:
            giving.ending = Ending.UNMATCHED
            giving.reason = f"no request here gave it within {self._config.lease_s:g} s"
        self._finish(giving)

    # How a transfer moves on and ends.

    def _giving(self, transfer_id: str) -> Giving:
        return self._givings.setdefault(transfer_id, Giving(transfer_id))

    def _advance(self, giving: Giving) -> None:
        """Post what may be posted; end the transfer if that was all."""
        self._settle_idle_pins(giving)
        if giving.ending is None and giving.claim is not None and giving.grant is not None:
            try:
                self._connectors[giving.claim.wanted.mode].advance(giving)
            except Exception as error:  # nothing that a peer says may end the thread
                self._fail(giving, "post", f"cannot post: {error}")
                return
        sent = giving.last_posted and not giving.is_pulled
        if giving.ending is None and sent and not self._flights.pins(giving.transfer_id):
            giving.ending = Ending.SENT
        self._finish(giving)

    def _settle_idle_pins(self, giving: Giving) -> None:
        """Blocks of an earlier grant are free once no post reads them."""
        busy = self._flights.pins(giving.transfer_id)
        current = None if giving.grant is None else giving.grant.pin
        for pin in [pin for pin in giving.pins if pin != current and pin not in busy]:
            giving.pins.remove(pin)
            self.events.append(Settled(pin=pin))

    def _fail(self, giving: Giving, kind: str, reason: str) -> None:
        if giving.ending is None:
            giving.ending, giving.reason = Ending.FAILED, reason
            self.failures[kind] += 1
        self._finish(giving)

    def _finish(self, giving: Giving) -> None:
        """If the transfer is ending and nothing of it is in flight: say so, free its blocks, forget it."""
        if giving.ending is None or self._flights.pins(giving.transfer_id):
            return
        del self._givings[giving.transfer_id]
        self._ended.add(giving.transfer_id, giving.ending, self._clock())
        if giving.reason:
            self.losses.append((giving.transfer_id, giving.reason))
        if giving.claim is not None:
            self._say_end(giving, giving.claim.link.engine_id)
        cost = self._flights.forget(giving.transfer_id)
        record = self._record(giving, cost) if giving.ending is Ending.SENT else None
        for pin in giving.pins:
            self.events.append(Settled(pin=pin, record=record if pin == giving.pins[-1] else None))

    def _say_end(self, giving: Giving, engine_id: str) -> None:
        transfer_id = giving.transfer_id
        match giving.ending:
            case Ending.FAILED:
                self._control.send(engine_id, self._failure(transfer_id, giving.reason))
            case Ending.CANCELLED:
                self._control.send(engine_id, Cancelled(transfer_id=transfer_id, rank=self._config.rank))
            case Ending.EXPIRED:
                self._control.send(engine_id, Expired(transfer_id=transfer_id))
            case Ending.UNMATCHED:
                self._control.send(engine_id, Gone(transfer_id=transfer_id))

    def _failure(self, transfer_id: str, reason: str) -> Fail:
        return Fail(transfer_id=transfer_id, rank=self._config.rank, reason=reason)

    def _record(self, giving: Giving, cost: Cost) -> TransferRecord | None:
        """What it cost; None where the taker moved the bytes."""
        if giving.is_pulled:
            return None
        return cost.record(
            giving.transfer_id,
            TransferMode.PUSH,
            exposed_s=cost.last_end_s - giving.prefilled_s,
            early_bytes=giving.early_bytes,
            clock_offset_s=time.time() - self._clock(),
        )

    # Figures.

    @property
    def num_unmatched(self) -> int:
        """Reservations whose prefill is not known here."""
        return sum(not giving.announced for giving in self._givings.values())

    @property
    def num_leased(self) -> int:
        """Prompts that wait for their taker."""
        return sum(giving.first_tokens is not None for giving in self._givings.values())

    @property
    def num_offered(self) -> int:
        """Prompts that a taker may be reading now (pull)."""
        return sum(giving.is_offered for giving in self._givings.values())

    @property
    def num_open(self) -> int:
        """Transfers that have not ended."""
        return len(self._givings)
