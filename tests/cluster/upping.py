"""A `baton up` process for tests: found through /proc, asked over HTTP, and always ended with all below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import httpx

from tests.cluster.serving import alive, children, until

WAIT_S = 90.0
BODY = {"prompt": [5, 6, 7] * 20, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Up:
    """`baton up` of a model with seeded random weights on the CPU, its router on a free port of the loopback.

    Attributes:
        stdout: the lines before the last, once it is ready.
        url: of the router.
        seen: every process that was found below it.
    """

    def __init__(self, model: Path, log_dir: Path, *flags: str) -> None:
        fixed = ["--host", "127.0.0.1", "--port", "0", "--device", "cpu", "--dtype", "float32"]
        fixed += ["--load-format", "dummy", "--max-model-len", "8192", "--log-dir", str(log_dir)]
        self.log_dir = log_dir
        self.stdout: list[str] = []
        self.url = ""
        self.seen: set[int] = set()
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "baton", "up", str(model), *fixed, *flags],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.look()
        self.process.kill()
        self.process.wait()
        for pid in self.seen:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()

    def ready(self) -> Self:
        """Wait for the line that says it serves."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Baton is ready at "):
                self.url = line.split()[-1]
                self.look()
                return self
            self.stdout.append(line)
        raise AssertionError((self.stdout, self.stderr()))

    def look(self) -> set[int]:
        """Note and return every living process below it."""
        found = _below(self.process.pid)
        self.seen |= found
        return found

    def find(self, *words: str) -> int:
        """The process directly below it whose command line has these words."""
        (pid,) = [pid for pid in children(self.process.pid) if set(words) <= set(_command(pid))]
        return pid

    def engine(self, role: str) -> int:
        """The engine process of the server with that role."""
        (pid,) = children(self.find("serve", role))
        return pid

    def gone(self) -> bool:
        """Whether nothing that was ever seen is left."""
        return not any(alive(pid) for pid in self.seen)

    def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions through the router."""
        return httpx.post(self.url + "/v1/completions", json=BODY | fields, timeout=30)

    def answers(self, expected: Any) -> None:
        """Until the router answers, and both halves of the fleet have a part in it."""

        def right() -> bool:
            try:
                answer = self.complete()
            except httpx.TransportError:
                return False
            if answer.status_code != 200:
                return False
            assert answer.json()["choices"][0]["text"] == expected
            (latest,) = httpx.get(self.url + "/fleet?requests=1").json()["requests"]
            return latest["attempts"][-1]["transfer_id"] != ""

        until(right, WAIT_S)

    def stderr(self) -> str:
        """What it has logged."""
        return os.pread(self._stderr.fileno(), os.fstat(self._stderr.fileno()).st_size, 0).decode(errors="replace")


def _below(pid: int) -> set[int]:
    direct = children(pid)
    return set(direct).union(*(_below(child) for child in direct))


def _command(pid: int) -> Iterable[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return ()
