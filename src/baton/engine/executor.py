"""Who runs steps: in the caller's thread, or in one worker thread in order.

Steps of one executor run strictly in the order of submission. That order is what the scheduler's plans and the
fence rule rest on.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from baton.core.step import Step, StepResult


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

    def shutdown(self) -> None:
        """Wait for queued steps and release what the executor holds."""


class InlineExecutor:
    """Runs each step before submit returns."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(self, step: Step) -> Pending:
        """Run the step now."""
        future: Future[StepResult] = Future()
        future.set_result(self._runner.execute(step))
        return future

    def shutdown(self) -> None:
        """Nothing is held."""


def runner_thread() -> ThreadPoolExecutor:
    """One thread that loads a model and then runs its steps.

    Both must be the same thread on a CPU: once a second thread of a process runs parallel torch operations, every
    one of them takes 2 to 4 times as long (OpenMP keeps a team of workers for each thread, and they fight for cores).
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-runner")


class ThreadExecutor:
    """Runs steps in one worker thread, so that the next step can be planned meanwhile.

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

    def shutdown(self) -> None:
        """Wait for queued steps and end the thread."""
        self._pool.shutdown(wait=True)
