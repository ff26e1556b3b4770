"""What a server holds when nobody asks: sequences, KV blocks, memory, files, sockets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.cluster.serving import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """From /metrics and /load. KV use is a share, 0 to 1."""

    running: float
    waiting: float
    kv_use: float
    answering: int

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, holds a block or is being answered."""
        return not (self.running or self.waiting or self.kv_use or self.answering)


def load_of(server: Server) -> Load:
    """The figures now."""
    text = httpx.get(server.url + "/metrics", timeout=30).text
    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[:1] not in "#"}
    return Load(
        running=values["vllm:num_requests_running"],
        waiting=values["vllm:num_requests_waiting"],
        kv_use=values["vllm:kv_cache_usage_perc"],
        answering=httpx.get(server.url + "/load", timeout=30).json()["server_load"],
    )


def num_sequences(server: Server) -> float:
    """Sequences that have ended, however."""
    lines = httpx.get(server.url + "/metrics", timeout=30).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))


def wait_idle(server: Server, timeout_s: float = 60.0) -> float:
    """Seconds until nothing is held any more.

    Raises:
        AssertionError: something stayed.
    """
    started_s = time.monotonic()
    while not (load := load_of(server)).idle:
        assert time.monotonic() - started_s < timeout_s, load
        time.sleep(0.05)
    return time.monotonic() - started_s


def rss_mib(pid: int) -> float:
    """Resident memory of a process in MiB (Linux)."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def num_files(pid: int) -> int:
    """Open file descriptors of a process (Linux)."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
