"""Which free blocks make the fewest runs: a run of neighbours is one piece of memory, and moves in one transfer."""

from __future__ import annotations

import re

_RUN = re.compile(rb"\x01+")


def longest_runs(free: bytes | bytearray, count: int) -> list[int]:
    """Choose up to `count` free blocks in as few runs as can be, long runs first, each in ascending order.

    A run that is longer than what is left to choose is cut; of those, the shortest is taken, so that long ones last.

    Args:
        free: a byte a block, 1 if it is free, else 0.
    """
    runs = sorted((range(*found.span()) for found in _RUN.finditer(free)), key=len, reverse=True)
    chosen: list[int] = []
    for place, run in enumerate(runs):
        left = count - len(chosen)
        if len(run) >= left:
            chosen += min((each for each in runs[place:] if len(each) >= left), key=len)[:left]
            break
        chosen += run
    return chosen
