"""Links between real processes that are killed, stopped, restarted and cut off: all heal by themselves."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SILENCE_S = 1.5

ROOT = Path(__file__).parents[2]
Start = Callable[..., "Process"]


class Process:
    """A `peer_process`."""

    def __init__(self, name: str, role: str, port: int = 0, silence_s: float = 1.5) -> None:
        self.name = name
        command = [sys.executable, "-m", "tests.transfer.peer_process", name, role, str(port), str(silence_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self._lines: queue.Queue[list[Any]] = queue.Queue()
        self.lines: list[list[Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = self.until("port", timeout_s=30)[1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def until(self, *beginning: Any, timeout_s: float = 10.0) -> list[Any]:
        """The next line that begins so."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{self.name}: no {beginning} in {self.lines}") from None
            self.lines.append(line)
            if line[: len(beginning)] == list(beginning):
                return line

    def tell(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._reader.join(10)


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Process] = []

    def make(name: str, role: str, **kwargs: Any) -> Process:
        made.append(Process(name, role, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def round_trip(giver: Process, taker: Process, transfer_id: str) -> None:
    taker.tell("say", giver.name, transfer_id)
    giver.until("from_taker", taker.name, ["NotNeeded", transfer_id])
    giver.tell("say", taker.name, transfer_id)
    taker.until("from_giver", giver.name, ["Expired", transfer_id])


def linked_pair(start: Start, **kwargs: Any) -> tuple[Process, Process]:
    giver, taker = start("giver", "prefill", **kwargs), start("taker", "decode", **kwargs)
    taker.tell("dial", "127.0.0.1", giver.port)
    taker.until("linked", "127.0.0.1", giver.port, "giver")
    round_trip(giver, taker, "first")
    return giver, taker


def test_a_killed_giver_that_restarts_at_its_port(start: Start) -> None:
    giver, taker = linked_pair(start, silence_s=5.0)
    giver.kill()
    again = start("again", "prefill", port=giver.port, silence_s=5.0)
    lost = taker.until("giver_lost", "giver")
    assert lost[3] is True  # known dead by its successor, or lost by silence before if the machine is slow
    taker.until("linked", "127.0.0.1", giver.port, "again")
    round_trip(again, taker, "second")


def test_a_killed_giver_is_lost_by_silence_and_its_successor_is_found_without_a_dial(start: Start) -> None:
    giver, taker = linked_pair(start)
    giver.kill()
    assert taker.until("giver_lost", "giver") == ["giver_lost", "giver", "nothing heard for 1.5 s", False]
    again = start("again", "prefill", port=giver.port)
    assert taker.until("giver_lost", "giver")[3] is True
    taker.until("linked", "127.0.0.1", giver.port, "again")
    round_trip(again, taker, "second")


def test_a_killed_taker_that_restarts_at_its_port(start: Start) -> None:
    giver, taker = linked_pair(start, silence_s=5.0)
    taker.kill()
    again = start("again", "decode", port=taker.port, silence_s=5.0)
    again.tell("dial", "127.0.0.1", giver.port)
    again.until("linked", "127.0.0.1", giver.port, "giver")
    reason = f"engine again has taken its place at 127.0.0.1:{taker.port}"
    assert giver.until("taker_lost", "taker") == ["taker_lost", "taker", reason]
    round_trip(giver, again, "second")


def test_a_killed_taker_is_lost_by_silence(start: Start) -> None:
    giver, taker = linked_pair(start)
    taker.kill()
    assert giver.until("taker_lost", "taker") == ["taker_lost", "taker", "nothing heard for 1.5 s"]


def stop_and_go_on(stopped: Process, other: Process, lost: str) -> None:
    """For twice as long as the silence after which a peer is lost; test_kills does it with whole engines and 5 s."""
    stopped.signal(signal.SIGSTOP)
    since = time.monotonic()
    other.until(lost, stopped.name, timeout_s=15)
    time.sleep(max(2 * SILENCE_S - (time.monotonic() - since), 0))  # the length of the stop is what is tested
    stopped.signal(signal.SIGCONT)


def test_a_stopped_giver_goes_on(start: Start) -> None:
    giver, taker = linked_pair(start, silence_s=SILENCE_S)
    stop_and_go_on(giver, taker, "giver_lost")
    taker.until("linked", "127.0.0.1", giver.port, "giver", timeout_s=15)
    round_trip(giver, taker, "second")
    assert not [line for line in taker.lines if line[0] == "giver_lost" and line[3]]


def test_a_stopped_taker_goes_on(start: Start) -> None:
    giver, taker = linked_pair(start, silence_s=SILENCE_S)
    stop_and_go_on(taker, giver, "taker_lost")
    taker.until("linked", "127.0.0.1", giver.port, "giver", timeout_s=15)
    round_trip(giver, taker, "second")


class Relay:
    """Passes bytes between a taker and a giver's port; `cut` resets every connection, `open` lets new ones through."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def cut(self) -> None:
        reset = b"\1\0\0\0\0\0\0\0"  # struct linger: on, 0 s
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()
        self._ends.clear()

    def close(self) -> None:
        self._closed = True
        self.cut()
        self._server.close()


def test_reset_connections_are_mended(start: Start) -> None:
    giver, taker = start("giver", "prefill", silence_s=5.0), start("taker", "decode", silence_s=5.0)
    relay = Relay(giver.port)
    try:
        taker.tell("dial", "127.0.0.1", relay.port)
        taker.until("linked", "127.0.0.1", relay.port, "giver")
        for count in range(3):
            round_trip(giver, taker, f"before {count}")
            relay.cut()
            giver.tell("say", "taker", f"into the void {count}")  # to a connection that has gone: lost
            taker.until("linked", "127.0.0.1", relay.port, "giver")
        round_trip(giver, taker, "after")
        assert not [line for line in taker.lines + giver.lines if line[0] in ("giver_lost", "taker_lost")]
    finally:
        relay.close()
