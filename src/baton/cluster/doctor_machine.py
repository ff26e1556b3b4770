"""What is wrong with this machine, in words: pure checks over facts that were gathered before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from baton.cluster.doctor_facts import MachineFacts
from baton.cluster.doctor_finding import Finding, error, ok, warning

_GIB = 2**30
_PYTHON = (3, 11)
_SHARED_MEMORY_BYTES = 256 << 20
_OPEN_FILES = 8192
_DISK_BYTES, _DISK_NEEDED_BYTES = 5 * _GIB, 256 << 20


def check_machine(facts: MachineFacts) -> list[Finding]:
    """Every finding about this machine."""
    return [*(finding for check in _CHECKS for finding in check(facts)), *check_disk(facts.disk_free_bytes)]


def _python(facts: MachineFacts) -> Iterator[Finding]:
    version = ".".join(map(str, facts.python))
    if facts.python < _PYTHON:
        yield error("python", f"This is Python {version}; install 3.11 or later.")
    else:
        yield ok("python", f"Python {version}.")


def _torch(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.torch:
        yield error(
            "torch",
            f"It cannot be loaded ({facts.torch_error}), so no engine runs here; pip install 'baton[engine]'. "
            "A router needs none.",
        )
    elif facts.num_gpu_devices and not facts.gpus:
        yield warning(
            "torch",
            f"{facts.torch} uses none of the {facts.num_gpu_devices} NVIDIA devices here; "
            "install a CUDA build of torch that fits the driver.",
        )
    else:
        yield ok("torch", f"{facts.torch}, on {', '.join(facts.gpus) or f'{facts.num_cores} CPU cores'}.")


def _nixl(facts: MachineFacts) -> Iterator[Finding]:
    names = ", ".join(facts.backends)
    if facts.nixl_error:
        yield error(
            "nixl",
            f"No hand-offs over {names}: {facts.nixl_error}; choose others with --nixl-backend, or install them.",
        )
    else:
        yield ok("nixl", f"Starts over {names}.")


def _shared_memory(facts: MachineFacts) -> Iterator[Finding]:
    free = facts.shared_memory_bytes
    if free is None:
        yield warning(
            "shared memory", "There is no /dev/shm, so hand-offs on this machine go over TCP, which is slower."
        )
    elif free < _SHARED_MEMORY_BYTES:
        yield warning(
            "shared memory", f"Only {free >> 20} MiB are free in /dev/shm; give the container more (--shm-size 1g)."
        )
    else:
        yield ok("shared memory", f"{free / _GIB:.1f} GiB are free in /dev/shm.")


def _open_files(facts: MachineFacts) -> Iterator[Finding]:
    limit = facts.open_files
    if limit is not None and limit < _OPEN_FILES:
        yield warning(
            "open files", f"A process may open only {limit}, so about as many connections; raise it (ulimit -Hn 65536)."
        )
    else:
        yield ok("open files", f"A process may open {'any number' if limit is None else limit}.")


def _ports(facts: MachineFacts) -> Iterator[Finding]:
    for port in facts.taken_ports:
        yield warning("ports", f"Something listens on {port} already; end it, or choose another --port.")
    if not facts.taken_ports:
        yield ok("ports", "The ports that Baton takes by default are free.")


def check_disk(free_bytes: Mapping[str, int]) -> Iterator[Finding]:
    """A finding for each folder."""
    for folder, free in free_bytes.items():
        said = f"{free / _GIB:.1f} GiB are free in {folder}"
        if free < _DISK_NEEDED_BYTES:
            yield error("disk", f"Only {said}: logs and models do not fit; make room.")
        elif free < _DISK_BYTES:
            yield warning("disk", f"Only {said}; a model may not fit.")
        else:
            yield ok("disk", f"{said}.")


_CHECKS = (_python, _torch, _nixl, _shared_memory, _open_files, _ports)
