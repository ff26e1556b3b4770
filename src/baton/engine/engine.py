"""The loop: schedule, run, commit. Plain and asynchronous form side by side."""

from __future__ import annotations

from collections import deque

from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import SchedulerStats
from baton.core.step import Step
from baton.engine.executor import Executor, Pending
from baton.sched.scheduler import Scheduler


class Engine:
    """One scheduler and one executor. Not thread-safe: one thread calls everything.

    Args:
        scheduler: decides.
        executor: runs steps in order.
        async_scheduling: plan step n+1 while step n runs.

    Attributes:
        planned: the step that the last call of step() planned; None if it planned none.
        committed: the step whose deltas the last call of step() returned; None if none completed.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, *, async_scheduling: bool) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._in_flight: deque[tuple[Step, Pending]] = deque()
        self._async_scheduling = async_scheduling
        self.planned: Step | None = None
        self.committed: Step | None = None

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: it can never run here.
        """
        self._scheduler.add(request)

    def finish(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request, or one of its sequences, in whatever state it is. Unknown ids are ignored."""
        self._scheduler.finish(request_id, index, reason)

    def has_work(self) -> bool:
        """Whether a further call of step() can change anything."""
        return bool(self._in_flight) or self._scheduler.has_work()

    def step(self) -> list[SequenceDelta]:
        """Advance by one step; returns what the committed step added to its sequences."""
        self.committed = None
        return self._step_async() if self._async_scheduling else self._step_plain()

    def _step_plain(self) -> list[SequenceDelta]:
        step = self.planned = self._scheduler.schedule()
        if step is None:
            return []
        return self._commit(step, self._executor.submit(step))

    def _step_async(self) -> list[SequenceDelta]:
        step = self.planned = self._scheduler.schedule()
        if step is not None:
            self._in_flight.append((step, self._executor.submit(step)))
            if len(self._in_flight) < 2:
                return []
        if not self._in_flight:
            return []
        oldest, pending = self._in_flight.popleft()
        return self._commit(oldest, pending)

    def _commit(self, step: Step, pending: Pending) -> list[SequenceDelta]:
        deltas = self._scheduler.commit(step, pending.result())
        self.committed = step
        return deltas

    def stats(self) -> SchedulerStats:
        """Figures of this moment."""
        return self._scheduler.stats()

    def check(self) -> None:
        """Assert that every block and slot is accounted for."""
        self._scheduler.check()

    def shutdown(self) -> None:
        """Wait for steps in flight and release the executor."""
        for _, pending in self._in_flight:
            pending.result()
        self._in_flight.clear()
        self._executor.shutdown()
