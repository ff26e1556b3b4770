"""Which free blocks make the fewest runs: a run of neighbours is one piece of memory, and moves in one transfer."""

from __future__ import annotations

from collections.abc import Iterable


def longest_runs(blocks: Iterable[int], count: int) -> list[int]:
    """Choose up to `count` of these blocks in as few runs as can be, long runs first, each in ascending order.

    A run that is longer than what is left to choose is cut; of those, the shortest is taken, so that long ones last.
    """
    runs = sorted(_runs(blocks), key=len, reverse=True)
    chosen: list[int] = []
    for place, run in enumerate(runs):
        left = count - len(chosen)
        if len(run) >= left:
            chosen += min((each for each in runs[place:] if len(each) >= left), key=len)[:left]
            break
        chosen += run
    return chosen


def _runs(blocks: Iterable[int]) -> list[range]:
    runs: list[range] = []
    for block in sorted(blocks):
        if runs and block == runs[-1].stop:
            runs[-1] = range(runs[-1].start, block + 1)
        else:
            runs.append(range(block, block + 1))
    return runs
