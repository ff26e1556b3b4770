"""A fleet under `baton up`, as the faults see it: which processes there are now, and what the router says of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from tests.chaos.models import FLOAT32, SMALL
from tests.chaos.processes import command_of
from tests.chaos.rest import get_json, held
from tests.cluster.serving import alive, children

READY = "Baton is ready at "


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An engine with its server. pid: of the server that `up` started first."""

    name: str
    url: str
    pid: int

    @property
    def port(self) -> int:
        """Of its HTTP server, over all restarts."""
        return int(self.url.rpartition(":")[2])


class UpFleet:
    """`baton up` of a model. A context: no process of it is alive afterwards."""

    def __init__(self, model: Path, log_dir: Path, *, mode: str, num_prefill: int = 2, num_decode: int = 2) -> None:
        self.log_dir = log_dir
        command = [sys.executable, "-m", "baton", "up", str(model), "--mode", mode, "--host", "127.0.0.1"]
        command += ["--prefill", str(num_prefill), "--decode", str(num_decode), "--port", "0"]
        command += ["--max-restarts", "1000", "--log-dir", str(log_dir), *FLOAT32, *SMALL]
        command += ["--", "--handoff-lease-s", "5", "--handoff-timeout-s", "15"]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self._up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        self.members: dict[str, Member] = {}
        self.url = ""

    def __enter__(self) -> Self:
        assert self._up.stdout is not None
        try:
            for line in self._up.stdout:
                self._read(line.strip())
                if self.url:
                    return self
            raise AssertionError(self.log())
        except BaseException:
            self.__exit__()
            raise

    def _read(self, line: str) -> None:
        if line.startswith(READY):
            self.url = line.removeprefix(READY)
        elif line.startswith(("prefill-", "decode-")):
            name, url, *_, pid = line.split()
            self.members[name] = Member(name=name, url=url, pid=int(pid))

    def __exit__(self, *error: object) -> None:
        self._up.terminate()
        try:
            self._up.wait(60)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()
        assert self._up.stdout is not None
        self._up.stdout.close()
        self._log.close()

    def log(self) -> str:
        """What `up` itself has logged."""
        # Not by seek and read: the process writes at the same file offset.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    def router(self) -> int | None:
        """Process id of the router that runs now."""
        found = [pid for pid in children(self._up.pid) if "route" in command_of(pid)[:4]]
        return found[0] if found else None

    def server(self, name: str) -> int | None:
        """Process id of a member's server that runs now."""
        member = self.members[name]
        for pid in children(self._up.pid):
            command = command_of(pid)
            if pid == member.pid or command[-2:] == ["--port", str(member.port)]:
                return pid if "serve" in command else None
        return None

    def engine(self, name: str) -> int | None:
        """Process id of a member's engine that runs now."""
        server = self.server(name)
        found = [] if server is None else children(server)
        return found[0] if found else None

    def pids(self) -> list[int]:
        """All that live, `up` itself included."""
        servers = children(self._up.pid)
        engines = [pid for server in servers for pid in children(server)]
        return [pid for pid in (self._up.pid, *servers, *engines) if alive(pid)]

    def stats(self, name: str) -> dict[str, Any]:
        """A member's GET /stats; empty when it does not answer."""
        return get_json(self.members[name].url + "/stats")

    def side_channels(self) -> set[int]:
        """Ports of the control endpoints of those that answer."""
        handoffs = [self.stats(name).get("handoff") for name in self.members]
        return {found["port"] for found in handoffs if found}

    def fallbacks(self) -> int:
        """Requests that were to be handed over and were prefilled by the decode engine, over all that live."""
        return sum(self.stats(name).get("handoff", {}).get("num_fallbacks", 0) for name in self.members)

    def router_answers(self) -> bool:
        """Whether the router's process serves, with or without workers."""
        try:
            return httpx.get(self.url + "/live", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def not_ready(self) -> list[str]:
        """What full strength lacks, in words: the router sees every member ready, and there is each process once."""
        states = {worker["url"]: worker["state"] for worker in self._workers()}
        found = [f"{name} is {states.get(each.url, 'unknown')}" for name, each in self.members.items()]
        missing = [words for words in found if not words.endswith(" is ready")]
        count, right = len(self.pids()), 2 + 2 * len(self.members)  # up and the router; a server and its engine each
        return missing + [f"{count} processes instead of {right}"] * (count != right)

    def held(self) -> list[str]:
        """What is not free at rest, in words: on the members, and what the router believes that they do."""
        found = [words for name in self.members for words in held(name, self.stats(name))]
        for worker in self._workers():
            found += [f"router: {worker['url']}: {what} {n}" for what, n in worker["outstanding"].items() if n]
        return found

    def _workers(self) -> list[dict[str, Any]]:
        """As the router has them; none while it does not answer."""
        workers: list[dict[str, Any]] = get_json(self.url + "/workers").get("workers", [])
        return workers
