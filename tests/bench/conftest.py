"""Stub servers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

StartStub = Callable[..., str]
TRIES = 4


def until_it_holds(check: Callable[[], None]) -> None:
    """A comparison of times: other load on the machine may break it, though not four times in a row."""
    for _ in range(TRIES - 1):
        try:
            return check()
        except AssertionError:
            pass
    check()


@pytest.fixture
def start_stub() -> Iterator[StartStub]:
    """Starts tests/bench/stub.py with these arguments; returns its URL."""
    with ExitStack() as stack:

        def start(*arguments: str) -> str:
            command = [sys.executable, str(Path(__file__).with_name("stub.py")), *arguments]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            return process.stdout.readline().strip()

        yield start
