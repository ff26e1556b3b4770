"""The control endpoint against peers that talk too much, too little, or nonsense: it carries on, and counts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from baton.core.errors import ConfigError
from baton.wire.control import Arrival, ControlSockets

Maker = Callable[..., ControlSockets]


@pytest.fixture
def sockets() -> Iterator[Maker]:
    made: list[ControlSockets] = []

    def make(host: str = "127.0.0.1", port: int = 0) -> ControlSockets:
        made.append(ControlSockets(host, port))
        return made[-1]

    yield make
    for each in made:
        each.close()


def arrivals(at: ControlSockets, count: int, *others: ControlSockets, timeout_s: float = 10.0) -> list[Arrival]:
    got: list[Arrival] = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} frames"
        got += at.drain()
        for other in others:
            other.drain()
        at.wait(0.01)
    return got


def until(condition: Callable[[], object], *driven: ControlSockets, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        for each in driven:
            each.drain()
        driven[0].wait(0.01)


def check_alive(endpoint: ControlSockets, dialler: ControlSockets, host: str = "127.0.0.1") -> None:
    """A frame and its answer pass."""
    route = dialler.connect(host, endpoint.port)
    assert dialler.send(route, b"question")
    (arrival,) = arrivals(endpoint, 1, dialler)
    assert arrival.frame == b"question"
    assert endpoint.send(arrival.route, b"answer")
    assert [a.frame for a in arrivals(dialler, 1)] == [b"answer"]
    dialler.hang_up(route)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"])
def test_frames_pass_both_ways_on_a_free_port(sockets: Maker, host: str) -> None:
    endpoint, dialler = sockets(host), sockets()
    assert 0 < endpoint.port < 2**16
    check_alive(endpoint, dialler, "localhost" if host == "localhost" else host.replace("0.0.0.0", "127.0.0.1"))


def test_the_sender_is_named(sockets: Maker) -> None:
    endpoint, dialler = sockets(), sockets()
    dialler.send(dialler.connect("127.0.0.1", endpoint.port), b"x")
    assert arrivals(endpoint, 1)[0].sender == "127.0.0.1"


def test_a_port_in_use_and_a_foreign_host_are_refused(sockets: Maker) -> None:
    endpoint = sockets()
    with pytest.raises(ConfigError, match=f"port {endpoint.port}"):
        ControlSockets("127.0.0.1", endpoint.port)
    for host in ("192.0.2.1", "no-such-host.invalid", "a" * 300, "x;y"):
        with pytest.raises(ConfigError, match="cannot listen"):
            ControlSockets(host, 0)


def test_a_name_is_looked_up_elsewhere(sockets: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service that takes its time holds up nobody; frames wait for it."""
    endpoint, dialler = sockets(), sockets()
    answer, create = threading.Event(), socket.create_connection

    def slow(address: tuple[str, int], timeout: float) -> socket.socket:
        assert answer.wait(10)
        return create(("127.0.0.1", address[1]), timeout)

    monkeypatch.setattr(socket, "create_connection", slow)
    route = dialler.connect("slow.example", endpoint.port)
    assert [dialler.send(route, b"%d" % n) for n in range(20)] == [True] * 16 + [False] * 4
    check_alive(endpoint, dialler)
    answer.set()
    assert [a.frame for a in arrivals(endpoint, 16, dialler)] == [b"%d" % n for n in range(16)]
    assert dialler.num_dropped == 4


def test_a_name_that_means_nothing_is_a_problem(sockets: Maker) -> None:
    dialler = sockets()
    for host in ("no-such-host.invalid", "a" * 300, "x;127.0.0.1", "\ud800", ""):
        route = dialler.connect(host, 1)
        until(lambda route=route: dialler.problem(route), dialler)
        assert "cannot connect" in str(dialler.problem(route))
        dialler.hang_up(route)
    assert dialler.problem(route) is None


NOISE = [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 200, b"\x16\x03\x01" + b"a" * 100, b""]


def test_noise_scans_and_half_open_connections_do_no_harm(sockets: Maker) -> None:
    endpoint, dialler = sockets(), sockets()
    held = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(20)]
    for noise in NOISE * 5:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as stranger:
            stranger.sendall(noise)
    until(lambda: endpoint.num_malformed >= 10, endpoint)
    check_alive(endpoint, dialler)
    for each in held:
        each.close()
    check_alive(endpoint, dialler)


def test_messages_of_many_parts_are_counted_and_long_frames_end_the_connection(sockets: Maker) -> None:
    endpoint, dialler = sockets(), sockets()
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    try:
        stranger.connect(f"tcp://127.0.0.1:{endpoint.port}")
        stranger.send_multipart([b"a", b"b"])
        stranger.send_multipart([b""] * 1000)
        until(lambda: endpoint.num_malformed == 2, endpoint)
        stranger.send(b"x" * (4 * 2**20))
        assert len(arrivals(endpoint, 1)[0].frame) == 4 * 2**20
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.send(b"x" * (4 * 2**20 + 1))
        assert monitor.poll(5000)
        stranger.disable_monitor()
        assert endpoint.drain() == []
        check_alive(endpoint, dialler)
    finally:
        context.destroy(linger=0)


def test_unknown_and_gone_routes_are_counted(sockets: Maker) -> None:
    endpoint, dialler = sockets(), sockets()
    assert not endpoint.send(b"nobody", b"x")
    assert not endpoint.send(7, b"x")
    route = dialler.connect("127.0.0.1", endpoint.port)
    dialler.send(route, b"x")
    (arrival,) = arrivals(endpoint, 1)
    dialler.hang_up(route)
    dialler.hang_up(route)
    assert not dialler.send(route, b"x")
    until(lambda: not endpoint.send(arrival.route, b"x"), endpoint)
    assert endpoint.num_dropped == 3 and dialler.num_dropped == 1


def test_a_peer_that_does_not_read_fills_its_queue_and_no_more(sockets: Maker) -> None:
    """Frames of 64 KiB: the queues of both ends are full long before all are sent; sending never waits."""
    endpoint, dialler, other = sockets(), sockets(), sockets()
    route = dialler.connect("127.0.0.1", endpoint.port)
    dialler.send(route, b"x")
    (arrival,) = arrivals(endpoint, 1)
    frame = bytes(65536)
    sent = sum(endpoint.send(arrival.route, frame) for _ in range(4000))
    assert 900 <= sent < 4000 and endpoint.num_dropped == 4000 - sent
    check_alive(endpoint, other)
    sent = sum(dialler.send(route, frame) for _ in range(4000))
    assert 900 <= sent < 4000 and dialler.num_dropped == 4000 - sent
    assert len(endpoint.drain()) <= 256  # a flood leaves time for other things


def test_wait_ends_by_a_frame_by_wake_and_by_time(sockets: Maker) -> None:
    endpoint, dialler = sockets(), sockets()

    def waited(timeout_s: float) -> float:
        start = time.monotonic()
        endpoint.wait(timeout_s)
        return time.monotonic() - start

    dialler.send(dialler.connect("127.0.0.1", endpoint.port), b"x")
    assert waited(5.0) < 4.0
    arrivals(endpoint, 1)
    threading.Timer(0.05, endpoint.wake).start()
    assert waited(5.0) < 4.0
    endpoint.wake()
    assert waited(5.0) < 4.0  # a wake-up before the wait counts
    assert waited(0.05) > 0.03  # and only once


def test_wake_after_close_does_nothing() -> None:
    closed = ControlSockets("127.0.0.1", 0)
    closed.close()
    closed.wake()
