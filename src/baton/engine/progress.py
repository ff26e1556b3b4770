"""A progress bar over prompts, with live output tokens/s."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Context manager; silent unless `show`."""

    def __init__(self, num_prompts: int, *, show: bool) -> None:
        self._bar = RichProgress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]:.1f} output tokens/s"),
            disable=not show,
        )
        self._task = self._bar.add_task("prompts", total=num_prompts, rate=0.0)
        self._num_tokens = 0
        self._started_s = time.perf_counter()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def tokens(self, count: int) -> None:
        """Count output tokens."""
        self._num_tokens += count
        elapsed_s = time.perf_counter() - self._started_s
        self._bar.update(self._task, rate=self._num_tokens / max(elapsed_s, 1e-9))

    def finished(self) -> None:
        """Count one prompt."""
        self._bar.advance(self._task)
