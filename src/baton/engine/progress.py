"""A progress bar over prompts, with live output tokens/s."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from baton.text.outputs import RequestOutput


class Progress:
    """Context manager over growing outputs; silent unless `show`."""

    def __init__(self, outputs: Sequence[RequestOutput], *, show: bool) -> None:
        self._outputs = outputs
        self._show = show
        self._bar = RichProgress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]:.1f} output tokens/s"),
            disable=not show,
        )
        self._task = self._bar.add_task("prompts", total=len(outputs), rate=0.0)
        self._started_s = time.perf_counter()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.update()
        self._bar.stop()

    def update(self) -> None:
        """Read the outputs again."""
        if not self._show:
            return
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        num_tokens = sum(len(each.token_ids) for output in self._outputs for each in output.outputs)
        num_finished = sum(output.finished for output in self._outputs)
        self._bar.update(self._task, completed=num_finished, rate=num_tokens / elapsed_s)
