"""A fleet of `baton up`, started for as long as it is measured."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.core.errors import ConfigError

_READY = "Baton is ready at "
_START_S, _STOP_S, _LOOK_S = 600.0, 60.0, 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def up_command(model: str, mode: str, flags: Sequence[str]) -> list[str]:
    """The command of a fleet that hands over in this mode, on a free port."""
    return [sys.executable, "-m", "baton", "up", model, "--mode", mode, "--port", "0", "--host", "127.0.0.1", *flags]


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[str]:
    """The URL of a fleet that serves; it is ended behind the block, and with this process.

    Args:
        log: file for what it says.

    Raises:
        ConfigError: it ends, or takes longer than ten minutes, before it serves.
    """
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C comes to the sweep, which ends the fleet in order
            preexec_fn=_leash,
        )
    try:
        yield _url(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        lines = log.read_text(errors="replace").rpartition("\n")[0].splitlines()
        ready = next((line for line in lines if line.startswith(_READY)), None)
        if ready is not None:
            return ready.removeprefix(_READY).strip()
        if process.poll() is not None:
            raise ConfigError(f"the fleet did not start: {lines[-1] if lines else 'it said nothing'} (see {log})")
        time.sleep(_LOOK_S)
    raise ConfigError(f"the fleet does not serve after {_START_S:g} s; see {log}")


def _leash() -> None:
    """In the new process: end when the one that started it does (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
