"""The reset of another process's connections is one: both ends see it, and only those that were chosen."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.processes import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfd")

_ECHO = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(connection):
    try:
        while part := connection.recv(100):
            connection.sendall(part)
    except OSError as error:
        print("lost", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def echo() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that sends back what it gets, and its port."""
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def connected(port: int) -> socket.socket:
    """A connection that has been used."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.sendall(b"x")
    assert connection.recv(10) == b"x"
    return connection


def test_a_reset_is_seen_by_both_ends(echo: tuple[subprocess.Popen[str], int]) -> None:
    process, port = echo
    assert process.stdout is not None
    with connected(port) as hit, connected(port) as spared, Process(process.pid) as victim:
        mine = hit.getsockname()[1]
        assert victim.reset(lambda ports: mine in ports) == 1
        with pytest.raises(ConnectionResetError):
            hit.recv(10)
        assert process.stdout.readline() == "lost\n"
        spared.sendall(b"y")
        assert spared.recv(10) == b"y"
    connected(port).close()
    assert process.poll() is None


def test_a_process_that_ended_gets_no_signal(echo: tuple[subprocess.Popen[str], int]) -> None:
    process, _ = echo
    with Process(process.pid) as victim:
        process.kill()
        process.wait()
        assert not victim.send(signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        Process(process.pid)
