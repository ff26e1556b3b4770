"""Server processes for tests: started, asked over HTTP, looked into through /proc, and always ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx

STUB_SERVER = Path(__file__).with_name("stub_server.py")


def until(found: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """The first true value of `found`."""
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


def children(pid: int) -> list[int]:
    """Process ids of the living children of a process (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process runs, zombies aside (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Server:
    """A command that serves HTTP and says so in one line. A context: it and its children are dead afterwards."""

    def __init__(self, command: list[str]) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.engines: list[int] = []
        self.url = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in (*self.engines, *children(self.process.pid)):
            if alive(pid) and pid in children(self.process.pid):
                subprocess.run(["kill", "-9", str(pid)], check=False)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()

    def ready(self) -> Self:
        """Wait for the line that says it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Baton is ready at http://"), (line, self.stderr())
        self.url = line.split()[-1]
        self.engine()
        return self

    def engine(self) -> int:
        """Process id of its engine."""
        (pid,) = children(self.process.pid)
        if pid not in self.engines:
            self.engines.append(pid)
        return pid

    def exit(self, timeout_s: float = 10.0) -> int:
        """Its exit code; then no engine of it may be left."""
        code = self.process.wait(timeout_s)
        assert not [pid for pid in self.engines if alive(pid)], "an orphan"
        return code

    def stderr(self) -> str:
        """What both processes have logged."""
        # Not by seek and read: the processes write at the same file offset.
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def status(self, path: str) -> int:
        """Status code of a GET; 0 when nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=5).status_code
        except httpx.TransportError:
            return 0

    def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions with a prompt of token ids."""
        body = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True} | fields
        return httpx.post(self.url + "/v1/completions", json=body, timeout=30)

    def stream(self, **fields: Any) -> Iterator[dict[str, Any] | str]:
        """Events of a streamed completion: JSON objects, and "[DONE]"."""
        body = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "stream": True} | fields
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=30) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    yield data if data == "[DONE]" else json.loads(data)


def stub_server(
    *, restart_engine: bool = False, port: int = 0, stub: dict[str, Any], router: str = "", **config: Any
) -> Server:
    """A server over the stand-in engine. router: where it registers."""
    given = {
        "config": {"host": "127.0.0.1", "port": port, **config},
        "stub": stub,
        "restart_engine": restart_engine,
        "router": router,
    }
    return Server([sys.executable, str(STUB_SERVER), json.dumps(given)])
