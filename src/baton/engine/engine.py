"""The loop: schedule, run, commit; with async scheduling, the next step is planned while one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from baton.core.errors import EngineDeadError
from baton.core.exchange import Command, Event
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import SchedulerStats
from baton.core.step import Step
from baton.engine.executor import Executor, Pending
from baton.engine.poison import Poison
from baton.sched.scheduler import Scheduler

_PLAIN, _ASYNC = 1, 2


class Engine:
    """One scheduler and one executor. Not thread-safe: one thread calls everything.

    An error in planning, in a step or in taking its result ends the engine for good: the caches and tables of a
    half-run step cannot be trusted. An interrupt (Ctrl-C) while a step is awaited loses nothing; call step() again.

    Args:
        scheduler: decides.
        executor: runs steps in order.
        async_scheduling: keep two steps in flight, so that one is planned while another runs; otherwise one.
        poison: debugging of blocks that change hands; None: off.

    Attributes:
        on_plan: called with every step just planned, before it runs.
        committed: the step whose deltas the last call of step() returned; None if none completed.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, async_scheduling: bool, poison: Poison | None = None
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._in_flight: deque[tuple[Step, Pending]] = deque()
        self._depth = _ASYNC if async_scheduling else _PLAIN
        self._poison = poison
        self._death: str | None = None
        self.on_plan: Callable[[Step], None] | None = None
        self.committed: Step | None = None

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: it can never run here.
            EngineDeadError: the engine has stopped.
        """
        self._require_life()
        self._scheduler.add(request)

    def finish(
        self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[SequenceDelta]:
        """End a request, or one of its sequences, in whatever state it is. Unknown ids are ignored.

        Returns:
            The last delta of each sequence ended here; nothing more comes for them.
        """
        return [] if self._death else self._scheduler.finish(request_id, index, reason)

    def withdraw(self, transfer_id: str) -> None:
        """Nobody will come for what is given under this id. Unknown ids are ignored."""
        if self._death is None:
            self._scheduler.withdraw(transfer_id)

    def commands(self) -> Sequence[Command]:
        """What the transfer thread must be told since the last call, in order. Ask after every other call."""
        commands = self._scheduler.take_commands()
        if self._poison is not None:
            self._poison.note(commands)
        return commands

    def deliver(self, event: Event) -> list[SequenceDelta]:
        """The transfer thread says that something happened.

        Returns:
            What it means to sequences: first tokens that landed, or ends.

        Raises:
            EngineDeadError: the event contradicts an earlier one; the cause is chained.
        """
        if self._death is not None:
            return []
        with self._fatal(BaseException):
            if self._poison is not None:
                self._poison.check(event)
            return self._scheduler.on_event(event)

    def has_work(self) -> bool:
        """Whether a further call of step() can change anything.

        False too while all that is alive waits for another engine: then wait for an event to deliver.
        """
        waits = self._scheduler.stalled or not self._scheduler.has_work()
        return self._death is None and (bool(self._in_flight) or not waits)

    def step(self) -> list[SequenceDelta]:
        """Plan as far ahead as allowed, then wait for the oldest step; returns what it added to its sequences.

        Raises:
            EngineDeadError: something failed; the cause is chained. Everything that ran is lost.
        """
        self._require_life()
        self.committed = None
        with self._fatal(BaseException):
            while len(self._in_flight) < self._depth and self._plan():
                pass
        if not self._in_flight:
            return []
        step, pending = self._in_flight[0]
        with self._fatal(Exception):
            result = pending.result()
        with self._fatal(BaseException):
            self._in_flight.popleft()
            self.committed = step
            return self._scheduler.commit(step, result)

    def _plan(self) -> bool:
        step = self._scheduler.schedule()
        if step is None:
            return False
        if self.on_plan is not None:
            self.on_plan(step)
        self._in_flight.append((step, self._executor.submit(step)))
        return True

    @contextmanager
    def _fatal(self, kind: type[BaseException]) -> Iterator[None]:
        """Errors of this kind end the engine."""
        try:
            yield
        except kind as error:
            self._death = f"the engine stopped: {type(error).__name__}: {error}".rstrip(": ")
            if isinstance(error, Exception):
                raise EngineDeadError(self._death) from error
            raise

    def _require_life(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    def stats(self) -> SchedulerStats:
        """Figures of this moment."""
        return self._scheduler.stats()

    def check(self) -> None:
        """Assert that every block and slot is accounted for."""
        self._scheduler.check()

    def shutdown(self) -> None:
        """Wait for what runs and release the executor. What was not finished is lost; nothing can be added any more."""
        self._death = self._death or "the engine was shut down"
        self._in_flight.clear()
        self._executor.shutdown()
