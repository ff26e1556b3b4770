"""The transfer thread of one rank: it alone owns the agent and the control sockets, and drives everything over them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from baton.core.errors import EngineDeadError
from baton.core.exchange import Command, Event, Expect, Forgo, Reserve
from baton.core.stats import TransferStats
from baton.obs.log import get_logger
from baton.transfer.agent import Agent, Notice
from baton.transfer.card import shown
from baton.transfer.flights import Flights
from baton.transfer.giver import Giver
from baton.transfer.peers import Peers
from baton.transfer.taker import Taker
from baton.wire.control import ControlSockets

_log = get_logger(__name__)
_BUSY_S = 0.0005  # between polls while a post of this engine, or a READ from it, is under way
_AWAITING_S = 0.002  # the same while others may write here: each poll takes time from the engine loop
_IDLE_S = 0.05
_TICK_S = 0.02
_STATS_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferParts:
    """What a worker drives, made for one another. giver or taker: None when the role has no such side."""

    agent: Agent
    sockets: ControlSockets
    peers: Peers
    flights: tuple[Flights, ...]
    giver: Giver | None
    taker: Taker | None


class TransferWorker:
    """Runs the transfer thread. `tell`, `take_events` and `stats` are the engine loop's; none awaits a peer.

    It ends with the process, or on an error, which `take_events` raises.

    Args:
        wake_engine: called, on the transfer thread, when there are events to take.
        prepare: called first of all on the transfer thread.
    """

    def __init__(
        self, parts: TransferParts, wake_engine: Callable[[], None], prepare: Callable[[], None] = lambda: None
    ) -> None:
        self._parts = parts
        self._wake_engine = wake_engine
        self._prepare = prepare
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._stats = TransferStats()
        self._death: Exception | None = None
        self._next_tick_s = self._next_stats_s = 0.0
        self._thread = threading.Thread(target=self._run, name="baton-transfer", daemon=True)
        self._thread.start()

    def tell(self, commands: Sequence[Command]) -> None:
        """Hand commands over, in order."""
        for command in commands:
            self._commands.put(command)
        if commands:
            self._parts.sockets.wake()

    def take_events(self) -> list[Event]:
        """Everything that has happened since the last call, in order.

        Raises:
            EngineDeadError: the thread has ended on an error; the cause is chained.
        """
        if self._death is not None:
            raise EngineDeadError(f"the transfer thread failed: {self._death}") from self._death
        events: list[Event] = []
        while True:
            try:
                events.append(self._events.get_nowait())
            except Empty:
                return events

    @property
    def stats(self) -> TransferStats:
        """Figures, at most a moment old."""
        return self._stats

    def _run(self) -> None:
        try:
            self._prepare()
            while True:
                self._turn()
                self._rest()
        except Exception as error:
            _log.exception("the transfer thread failed")
            self._death = error
            self._wake_engine()
        finally:
            self._parts.sockets.close()
            self._parts.agent.close()

    def _turn(self) -> None:
        """What peers said comes first: after a pause of this process (SIGSTOP) nothing may be posted that they have
        cancelled meanwhile, nor anything to a peer that has been silent for too long.

        Events go out after the poll: what a WRITE that failed has brought here is taken in before its blocks are
        free, also when the giver's Fail was read first."""
        now = time.monotonic()
        self._parts.peers.receive(now)
        if now >= self._next_tick_s:
            self._next_tick_s = now + _TICK_S
            self._tick(now)
        self._take_commands()
        self._poll_agent()
        self._pass_events()

    def _tick(self, now: float) -> None:
        parts = self._parts
        parts.peers.tick(now)
        if parts.giver is not None:
            parts.giver.tick()
        if parts.taker is not None:
            parts.taker.tick()
        if now >= self._next_stats_s:
            self._next_stats_s = now + _STATS_S
            self._stats = self._figures()

    def _take_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            if isinstance(command, Expect | Reserve | Forgo):
                assert self._parts.taker is not None, command
                self._parts.taker.command(command)
            else:
                assert self._parts.giver is not None, command
                self._parts.giver.command(command)

    def _poll_agent(self) -> None:
        parts = self._parts
        ended, notices = parts.agent.poll()
        for each in ended:
            owners = (parts.peers, parts.giver, parts.taker)
            if not any(owner is not None and owner.ended(each) for owner in owners):
                _log.warning("a post ended that belongs to nobody: %s", each)
        for notice in notices:
            self._take_notice(notice)

    def _take_notice(self, notice: Notice) -> None:
        opened = self._parts.peers.open_notice(notice.peer, notice.payload)
        if opened is not None and self._parts.taker is not None:
            self._parts.taker.from_giver(*opened)

    def _pass_events(self) -> None:
        some = False
        if self._parts.giver is not None:
            _log_losses(self._parts.giver.losses)
            self._parts.giver.losses.clear()
        for side in (self._parts.giver, self._parts.taker):
            if side is None or not side.events:
                continue
            some = True
            for event in side.events:
                self._events.put(event)
            side.events.clear()
        if some:
            self._wake_engine()

    def _rest(self) -> None:
        """Until something may have happened. An agent has nothing to wait on, so it is polled."""
        giver, taker = self._parts.giver, self._parts.taker
        if any(map(len, self._parts.flights)) or (giver is not None and giver.num_offered > 0):
            time.sleep(_BUSY_S)
        else:
            awaiting = taker is not None and taker.awaits_writes
            self._parts.sockets.wait(_AWAITING_S if awaiting else _IDLE_S)

    def _figures(self) -> TransferStats:
        parts, giver, taker = self._parts, self._parts.giver, self._parts.taker
        sides = [side for side in (giver, taker) if side is not None]
        failures: Counter[str] = sum((side.failures for side in sides), Counter())
        return TransferStats(
            num_waiting=taker.num_waiting if taker else 0,
            num_unmatched=giver.num_unmatched if giver else 0,
            num_leased=giver.num_leased if giver else 0,
            num_in_flight=sum(map(len, parts.flights)),
            num_quarantined=taker.num_quarantined if taker else 0,
            num_links=parts.peers.num_links,
            num_expired=giver.num_expired if giver else 0,
            num_late=parts.peers.num_late + sum(side.num_late for side in sides),
            num_malformed=parts.peers.num_malformed,
            num_dropped=parts.sockets.num_dropped,
            failures=dict(failures),
        )


def _log_losses(losses: Sequence[tuple[str, str]]) -> None:
    """One line for each cause: a lost taker fails many hand-offs at once."""
    by_reason: dict[str, list[str]] = {}
    for transfer_id, reason in losses:
        by_reason.setdefault(reason, []).append(transfer_id)
    for reason, (first, *others) in by_reason.items():
        more = f" and {len(others)} more" if others else ""
        _log.warning("gave up hand-off %s%s: %s", shown(first), more, shown(reason))
