"""The decode side of all hand-offs: reserves, waits for every rank, falls back, and settles each pin once.

Deterministic: no thread, no socket, no clock of its own. What reads the bytes in pull is a connector, `pull.Puller`; in
push it has nothing to do but to verify.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from baton.core.exchange import (
    Event,
    Expect,
    Failed,
    FirstToken,
    Forgo,
    Landed,
    Reserve,
    Settled,
    TakerCommand,
    TransferRecord,
)
from baton.core.handoff import PeerAddress, TransferMode
from baton.transfer.agent import Ended
from baton.transfer.ended import EndedTransfers, Ending
from baton.transfer.flights import Flights
from baton.transfer.link import Control, Link
from baton.wire.handoff import (
    Cancel,
    Cancelled,
    Done,
    Expired,
    Fail,
    FromGiver,
    Gone,
    NotNeeded,
    Offer,
    Reserving,
    Taken,
)

_RELINK_S = 2.5  # for a link to an engine that has restarted to be found out and made anew


@dataclass(frozen=True, slots=True, kw_only=True)
class TakerConfig:
    """Limits of a taker.

    Attributes:
        timeout_s: from a reservation to its landing; then the request falls back.
        quarantine_s: how long blocks stay pinned when their giver was lost and nothing proves that it has ended.
        dead_s: the same when it is known to have ended: its last WRITEs may still be under way.
    """

    timeout_s: float = 120.0
    quarantine_s: float = 60.0
    dead_s: float = 2.0

    @property
    def memory_s(self) -> float:
        """How long ended transfers are remembered."""
        return self.timeout_s + self.quarantine_s


@dataclass(slots=True, eq=False)
class Taking:
    """One transfer on the taker's side.

    Attributes:
        reserve: None while the request waits for blocks, and when its pin was settled early.
        link: the incarnation it is bound to; None before the first link.
        sources: giver ranks that must deliver.
        delivered: of these, whose bytes are all here.
        drained: of these, that will write nothing (more).
        digests: by rank, of what the giver sent.
        failed: the request was told to go on without.
        forgone: the request told us so.
        deadline_s: for landing, or for the end of the quarantine.
        bind_deadline_s: another incarnation than the wanted one answers; the wanted one may still appear until then.
        lost: the giver is silent, or dead; the quarantine runs.
        offered_s: when the first offer came (pull).
    """

    transfer_id: str
    source: PeerAddress
    mode: TransferMode
    reserve: Reserve | None = None
    link: Link | None = None
    sources: frozenset[int] = frozenset()
    delivered: set[int] = field(default_factory=set)
    drained: set[int] = field(default_factory=set)
    digests: dict[int, bytes | None] = field(default_factory=dict)
    first_tokens: tuple[FirstToken, ...] = ()
    failed: bool = False
    forgone: bool = False
    deadline_s: float | None = None
    bind_deadline_s: float | None = None
    lost: bool = False
    offered_s: float = 0.0

    @property
    def stopping(self) -> bool:
        """Nobody waits for it any more; only its pin, or a word to the giver, is left."""
        return self.failed or self.forgone

    @property
    def is_waiting(self) -> bool:
        """Somebody waits for what is to land in its blocks."""
        return self.reserve is not None and not self.stopping


class TransferError(Exception):
    """A hand-off cannot be used; the message is one line."""


class TakeConnector(Protocol):
    """Reads what is offered, and looks at what has landed."""

    def sources(self, link: Link) -> frozenset[int]:
        """Ranks of the giver that this worker gets bytes from."""

    def fetch(self, taking: Taking, offer: Offer) -> bool:
        """Start to READ what a rank offers (pull). Returns False if there is nothing to read.

        Raises:
            TransferError, BlocksError: the offer cannot be right.
            AgentError: a post was refused.
        """

    def digest_of(self, offer: Offer) -> bytes | None:
        """The digest of what this worker is to read; None if there is none."""

    def verify(self, taking: Taking, rank: int) -> None:
        """Compare the digest that a rank sent with what has landed from it.

        Raises:
            TransferError: they differ.
        """


class Taker:
    """See the module.

    Args:
        confirmed_s: for an engine id, when the latest Alive was sent that it is known to have received: until a
            lease after that it keeps what it offered.

    Attributes:
        events: for the scheduler, in order; whoever drives the taker takes them.
        num_late: since the start.
        failures: by kind of cause.
    """

    def __init__(
        self,
        config: TakerConfig,
        control: Control,
        flights: Flights,
        connector: TakeConnector,
        confirmed_s: Callable[[str], float],
    ) -> None:
        self.events: list[Event] = []
        self.num_late = 0
        self.failures: Counter[str] = Counter()
        self._config = config
        self._control = control
        self._flights = flights
        self._clock = flights.clock
        self._connector = connector
        self._confirmed_s = confirmed_s
        self._takings: dict[str, Taking] = {}
        self._ended = EndedTransfers(config.memory_s)

    # What the scheduler says.

    def command(self, command: TakerCommand) -> None:
        """Take a command of the scheduler."""
        match command:
            case Expect():
                self._expect(command)
            case Reserve():
                self._reserve(command)
            case Forgo():
                self._forgo(command.transfer_id)

    def _expect(self, expect: Expect) -> None:
        transfer_id, source = expect.transfer_id, expect.source
        if transfer_id in self._takings or self._ended.get(transfer_id) is not None:
            reason = f"transfer {transfer_id} was asked for before; make a new transfer_id for every attempt"
            self.events.append(Failed(transfer_id=transfer_id, reason=reason))
            return
        self._takings[transfer_id] = Taking(transfer_id, source, expect.mode)
        self._control.dial(source.host, source.port)  # may call `linked` at once

    def _reserve(self, reserve: Reserve) -> None:
        taking = self._takings.get(reserve.transfer_id)
        if taking is None:  # it has failed; that is under way to the scheduler
            self.events.append(Settled(pin=reserve.pin))
            return
        assert taking.reserve is None and not taking.stopping, f"transfer {reserve.transfer_id} is reserved twice"
        taking.reserve = reserve
        taking.deadline_s = self._clock() + self._config.timeout_s
        self._say_reserving(taking)

    def _say_reserving(self, taking: Taking) -> None:
        reserve, link = taking.reserve, taking.link
        if reserve is None or link is None:
            return
        message = Reserving(
            transfer_id=reserve.transfer_id,
            mode=taking.mode,
            block_ids=reserve.block_ids,
            num_tokens=reserve.num_tokens,
            prompt_digest=reserve.prompt_digest,
            num_cached_tokens=reserve.num_cached_tokens,
        )
        self._control.send(link.engine_id, message)

    def _forgo(self, transfer_id: str) -> None:
        taking = self._takings.get(transfer_id)
        if taking is not None and not taking.stopping:
            taking.forgone = True
            self._stop(taking)

    # What is known of givers.

    def linked(self, host: str, port: int, link: Link) -> None:
        """There is a (new) link to this address."""
        for taking in self._at(host, port):
            if taking.link is None:
                self._bind(taking, link)
            elif taking.link.engine_id == link.engine_id:
                self._resume(taking, link)

    def _at(self, host: str, port: int) -> list[Taking]:
        return [each for each in self._takings.values() if (each.source.host, each.source.port) == (host, port)]

    def _bind(self, taking: Taking, link: Link) -> None:
        wanted = taking.source.engine_id
        if wanted is not None and wanted != link.engine_id:
            if taking.bind_deadline_s is None:
                taking.bind_deadline_s = self._clock() + _RELINK_S
            return
        taking.link, taking.bind_deadline_s = link, None
        taking.sources = self._connector.sources(link)
        if taking.mode is TransferMode.PULL:  # nobody writes here
            taking.drained |= taking.sources
        self._resume(taking, link)

    def _resume(self, taking: Taking, link: Link) -> None:
        """The incarnation is there, or back: it may have missed what was said last."""
        taking.link, taking.lost = link, False
        if taking.stopping:
            self._stop(taking)
        else:
            self._say_reserving(taking)

    def unreachable(self, host: str, port: int, reason: str, *, refused: bool) -> None:
        """No link could be made: whatever is not bound to one fails."""
        kind, verb = ("refused", "refused") if refused else ("unreachable", "is not reachable")
        for taking in self._at(host, port):
            if taking.link is None:
                why = f"the giver at {host}:{port} {verb}: {reason}"
                self._fail_unbound(taking, kind, why, refused=refused)

    def _fail_unbound(self, taking: Taking, kind: str, reason: str, *, refused: bool = False) -> None:
        if not taking.stopping:
            self._report(taking, kind, reason, refused=refused)
        self._drop(taking)

    def giver_lost(self, engine_id: str, reason: str, *, dead: bool) -> None:
        """Requests go on without it at once. Its pins wait: what it has posted may still land, even if it is dead."""
        for taking in list(self._takings.values()):
            if taking.link is None or taking.link.engine_id != engine_id:
                continue
            if not taking.stopping:
                self._report(taking, "giver lost", f"the giver {engine_id} was lost: {reason}")
            if taking.reserve is None:
                taking.drained |= taking.sources
            elif dead or not taking.lost:
                taking.lost = True
                taking.deadline_s = self._clock() + (self._config.dead_s if dead else self._config.quarantine_s)
            self._finish(taking)

    # What givers say.

    def from_giver(self, link: Link, message: FromGiver) -> None:
        """Take an authentic message of a linked giver, or the Done of a notice."""
        taking = self._takings.get(getattr(message, "transfer_id", ""))
        if taking is None or taking.link is None or taking.link.engine_id != link.engine_id:
            self.num_late += 1
            return
        match message:
            case Done():
                self._done(taking, message)
            case Offer():
                self._offer(taking, message)
            case Fail():
                self._over(taking, message.rank, "giver failed", f"the giver {link.engine_id} said: {message.reason}")
            case Cancelled():
                self._over(taking, message.rank, "cancelled", f"the giver {link.engine_id} cancelled")
            case Expired():
                reason = f"the lease ended at the giver {link.engine_id} before anyone came"
                self._fail(taking, "expired", reason)
            case Gone():
                self._fail(taking, "gone", f"the giver {link.engine_id} does not know this transfer")

    def _over(self, taking: Taking, rank: int, kind: str, reason: str) -> None:
        """A rank will write nothing more. Expired and Gone name none: then each rank's Cancelled says so."""
        taking.drained |= taking.sources & {rank}
        self._fail(taking, kind, reason)

    def _done(self, taking: Taking, done: Done) -> None:
        """One rank has delivered. The set of ranks decides, not their number."""
        pushed = taking.mode is TransferMode.PUSH and done.rank in taking.sources - taking.delivered
        if not pushed or taking.reserve is None:
            self.num_late += 1
            return
        taking.drained.add(done.rank)
        if taking.stopping:
            self._finish(taking)
            return
        taking.digests[done.rank] = done.digest
        try:
            if done.num_tokens != taking.reserve.num_tokens:
                raise TransferError(f"{done.num_tokens} tokens came, {taking.reserve.num_tokens} were reserved")
            self._connector.verify(taking, done.rank)
        except TransferError as error:
            self._fail(taking, "verification", str(error))
            return
        taking.first_tokens = taking.first_tokens or done.first_tokens
        taking.delivered.add(done.rank)
        if taking.delivered == taking.sources:
            self._land(taking, record=None)

    def _offer(self, taking: Taking, offer: Offer) -> None:
        pulled = taking.mode is TransferMode.PULL and offer.rank in taking.sources
        if not pulled or taking.reserve is None or taking.stopping:
            self.num_late += 1
            return
        if offer.rank in taking.digests:
            return  # said again while it is being read
        taking.offered_s = taking.offered_s or self._clock()
        taking.first_tokens = taking.first_tokens or offer.first_tokens
        taking.digests[offer.rank] = self._connector.digest_of(offer)
        try:
            started = self._connector.fetch(taking, offer)
        except Exception as error:  # nothing that a peer says may end the thread
            self._fail(taking, "offer", f"cannot read what the giver offers: {error}")
            return
        if not started:
            self._fetched(taking)

    def ended(self, ended: Ended) -> bool:
        """A READ is over. Returns False if it was not this taker's."""
        transfer_id = self._flights.ended(ended)
        if transfer_id is None:
            return False
        taking = self._takings[transfer_id]
        if ended.error is not None:
            self._fail(taking, "transfer", f"the transfer failed: {ended.error}")
        elif taking.stopping:
            self._finish(taking)
        else:
            self._fetched(taking)
        return True

    def _fetched(self, taking: Taking) -> None:
        """A READ is over. When all are: use what they brought, if the giver's lease covered them."""
        assert taking.link is not None
        if self._flights.pins(taking.transfer_id) or taking.digests.keys() != taking.sources:
            return
        now, lease_s = self._clock(), taking.link.card.lease_s
        if now >= self._confirmed_s(taking.link.engine_id) + lease_s:
            self._fail(taking, "expired", f"the lease of {lease_s:g} s ended before everything was read")
            return
        try:
            for rank in sorted(taking.sources):
                self._connector.verify(taking, rank)
        except TransferError as error:
            self._fail(taking, "verification", str(error))
            return
        self._control.send(taking.link.engine_id, Taken(transfer_id=taking.transfer_id))
        self._land(taking, record=self._record(taking, now))

    # Time.

    def tick(self) -> None:
        """Give up what is overdue; end quarantines."""
        now = self._clock()
        for taking in list(self._takings.values()):
            if taking.bind_deadline_s is not None and now >= taking.bind_deadline_s:
                self._fail_unbound(taking, "restarted", _restarted(taking.source))
            elif taking.deadline_s is None or now < taking.deadline_s:
                continue
            elif taking.lost:
                taking.drained |= taking.sources
                self._finish(taking)
            elif not taking.stopping:
                self._fail(taking, "timeout", f"nothing landed within {self._config.timeout_s:g} s")
        self._ended.forget(now)

    def alive_ids(self, engine_id: str) -> tuple[str, ...]:
        """Transfers of this giver that somebody here waits for."""
        return tuple(
            taking.transfer_id
            for taking in self._takings.values()
            if not taking.stopping and taking.link is not None and taking.link.engine_id == engine_id
        )

    # How a transfer ends.

    def _land(self, taking: Taking, record: TransferRecord | None) -> None:
        assert taking.reserve is not None
        self.events.append(Landed(transfer_id=taking.transfer_id, first_tokens=taking.first_tokens))
        self._drop(taking, record)

    def _record(self, taking: Taking, now: float) -> TransferRecord:
        return self._flights.cost(taking.transfer_id).record(
            taking.transfer_id,
            TransferMode.PULL,
            exposed_s=now - taking.offered_s,
            early_bytes=0,
            clock_offset_s=time.time() - now,
        )

    def _report(self, taking: Taking, kind: str, reason: str, *, refused: bool = False) -> None:
        """The request goes on without; said once."""
        taking.failed = True
        self.failures[kind] += 1
        self.events.append(Failed(transfer_id=taking.transfer_id, reason=reason, refused=refused))

    def _fail(self, taking: Taking, kind: str, reason: str) -> None:
        if taking.stopping:
            self._finish(taking)
        else:
            self._report(taking, kind, reason)
            self._stop(taking)

    def _stop(self, taking: Taking) -> None:
        """Tell the giver; repeated when it comes back after a silence."""
        if taking.link is None:
            self._settle(taking)  # nobody knows these blocks
            return
        if taking.reserve is None:
            self._control.send(taking.link.engine_id, NotNeeded(transfer_id=taking.transfer_id))
        else:
            self._control.send(taking.link.engine_id, Cancel(transfer_id=taking.transfer_id))
        self._finish(taking)

    def _finish(self, taking: Taking) -> None:
        """Forget what nobody waits for, once nothing can write to its blocks."""
        assert taking.stopping
        can_write = taking.reserve is not None and not taking.drained >= taking.sources
        if not can_write and not self._flights.pins(taking.transfer_id):
            self._drop(taking)

    def _drop(self, taking: Taking, record: TransferRecord | None = None) -> None:
        del self._takings[taking.transfer_id]
        self._ended.add(taking.transfer_id, Ending.FAILED if taking.stopping else Ending.SENT, self._clock())
        self._flights.forget(taking.transfer_id)
        self._settle(taking, record)

    def _settle(self, taking: Taking, record: TransferRecord | None = None) -> None:
        if taking.reserve is not None:
            self.events.append(Settled(pin=taking.reserve.pin, record=record))
            taking.reserve = None

    # Figures.

    @property
    def num_waiting(self) -> int:
        """Reservations that are waited for."""
        return sum(taking.is_waiting for taking in self._takings.values())

    @property
    def awaits_writes(self) -> bool:
        """Whether givers may be writing here (push)."""
        return any(taking.mode is TransferMode.PUSH and taking.is_waiting for taking in self._takings.values())

    @property
    def num_quarantined(self) -> int:
        """Reservations whose giver was lost, still pinned."""
        return sum(taking.lost for taking in self._takings.values())

    @property
    def num_open(self) -> int:
        """Transfers that have not ended here."""
        return len(self._takings)


def _restarted(source: PeerAddress) -> str:
    return f"engine {source.engine_id} is no longer at {source.host}:{source.port}; another one answers there"
