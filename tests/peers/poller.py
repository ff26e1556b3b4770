"""NIXL's progress thread inside vLLM's workers polls without pause; on few cores it takes time from the computing.

vLLM's connector also moves the thread that computes to the last core, of each server the same one. Linux only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_S = 1.5
_LEAST_NICE = 19


def put_last(group: int, core: int) -> None:
    """In each vLLM worker of a process group, which must be idle: compute on `core`, poll when nobody else runs."""
    for worker in _workers(group):
        os.sched_setaffinity(worker, {core})
        poller = _busiest(worker)
        if poller is not None:
            os.setpriority(os.PRIO_PROCESS, poller, _LEAST_NICE)
            os.sched_setaffinity(poller, os.sched_getaffinity(0))


def _workers(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[2]) == group and "VLLM::Worker" in name:
            found.append(int(folder.name))
    return found


def _busiest(worker: int) -> int | None:
    """The thread, other than the main one, that uses most processor time while nothing is asked."""
    before = _ticks(worker)
    time.sleep(_LOOK_S)
    used = {thread: ticks - before.get(thread, ticks) for thread, ticks in _ticks(worker).items() if thread != worker}
    return max(used, key=lambda thread: used[thread], default=None)


def _ticks(worker: int) -> dict[int, int]:
    found = {}
    for folder in Path(f"/proc/{worker}/task").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = int(fields[11]) + int(fields[12])
    return found
