"""Who runs steps: one thread of its own, strictly in the order of submission.

That order is what the scheduler's plans and the fence rule rest on. The caller only ever waits, so an interrupt
(Ctrl-C) never stops a step half-way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from baton.core.step import Step, StepResult

T = TypeVar("T")


class Runner(Protocol):
    """Executes steps; `baton.engine.runner.ModelRunner` or `baton.engine.stub_runner.StubRunner`."""

    def execute(self, step: Step) -> StepResult:
        """Run one step to its end."""


class Pending(Protocol):
    """A submitted step."""

    def result(self) -> StepResult:
        """Wait for the step to end; raises what the runner raised."""


class Executor(Protocol):
    """Takes steps in order."""

    def submit(self, step: Step) -> Pending:
        """Queue a step behind those submitted before."""

    def call(self, work: Callable[[], T]) -> T:
        """Do something where steps run, behind those submitted before, and wait for it; raises what it raises."""

    def shutdown(self) -> None:
        """Wait for the running step, drop those behind it, release what the executor holds."""


def runner_thread() -> ThreadPoolExecutor:
    """One thread that loads a model and then runs its steps.

    Both must be the same thread on a CPU: once a second thread of a process runs parallel torch operations, every
    one of them takes 2 to 4 times as long (OpenMP keeps a team of workers for each thread, and they fight for cores).
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-runner")


class ThreadExecutor:
    """Runs steps in one worker thread; the next step can be planned meanwhile.

    Args:
        runner: executes the steps.
        thread: the thread that made the runner, see `runner_thread`; a new one by default.
    """

    def __init__(self, runner: Runner, thread: ThreadPoolExecutor | None = None) -> None:
        self._runner = runner
        self._pool = thread or runner_thread()

    def submit(self, step: Step) -> Pending:
        """Queue the step."""
        return self._pool.submit(self._runner.execute, step)

    def call(self, work: Callable[[], T]) -> T:
        """Do something in the thread, behind the steps submitted before, and wait for it."""
        return self._pool.submit(work).result()

    def shutdown(self) -> None:
        """Wait for the running step, drop those behind it, end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)
