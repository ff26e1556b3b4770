"""The sockets between engines: one endpoint that others dial, and one connection to each that is dialled.

Nothing here waits, and nothing grows without limit: what does not fit into a queue is dropped and counted. Peers are
told apart by who authenticates a frame, not by a connection's name: a name lives no longer than its connection, and
nobody can take over another's.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from baton.core.errors import ConfigError
from baton.wire.sockets import Context, Socket, SocketError, SocketKind, Waiter

_QUEUE_FRAMES = 1000  # of one peer, each way
_MAX_FRAME_BYTES = 4 * 2**20  # a longer one ends the connection; block ids of a million tokens are 0.6 MB
_DRAIN_FRAMES = 256  # then timers get a turn
_UNRESOLVED_FRAMES = 16  # kept while a name is looked up
_RESOLVE_S = 2.0  # for each address of a name

Route = int | bytes
"""How to reach a peer: the number of a dialled connection, or the endpoint's name of one that came in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A frame. sender: IP address it came from, for logs."""

    route: Route
    frame: bytes
    sender: str


class _Lookup:
    """Finds an address of a name that accepts connections, on a thread of its own: name services can take long."""

    def __init__(self, host: str, port: int, done: Callable[[], None]) -> None:
        self.address: str | None = None
        self.problem: str | None = None
        threading.Thread(target=self._run, args=(host, port, done), name="baton-lookup", daemon=True).start()

    def _run(self, host: str, port: int, done: Callable[[], None]) -> None:
        try:
            with socket.create_connection((host, port), timeout=_RESOLVE_S) as connection:
                self.address = str(connection.getpeername()[0])
        except (OSError, UnicodeError) as error:
            self.problem = f"cannot connect to {host!r}: {error}"
        done()


@dataclass(slots=True)
class _Dialled:
    """One connection. lookup: while its name is not resolved."""

    host: str
    port: int
    socket: Socket | None = None
    lookup: _Lookup | None = None
    queue: list[bytes] = field(default_factory=list)
    problem: str | None = None


class ControlSockets:
    """All control connections of an engine. Used by one thread, except `wake`.

    Args:
        host: name or address to listen on; "0.0.0.0" and "::" are all of this machine.
        port: 0 takes a free one.

    Raises:
        ConfigError: that address cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        self.num_dropped = 0
        self._num_malformed = 0
        self._context = Context()
        self._waiter = Waiter()
        self._dialled: dict[int, _Dialled] = {}
        self._next_route = 0
        try:
            self._endpoint = self._listen(host, port)
        except ConfigError:
            self._waiter.close()
            self._context.close()
            raise
        self._waiter.add(self._endpoint)

    def _listen(self, host: str, port: int) -> Socket:
        endpoint = self._open(SocketKind.ROUTER, ipv6=":" in (address := _own_address(host)))
        endpoint.count_failed_handshakes()
        try:
            endpoint.bind(_tcp(address, "*" if port == 0 else str(port)))
        except SocketError as error:
            endpoint.close()
            raise ConfigError(f"cannot listen on {host} port {port} ({error}); choose another host or port") from error
        return endpoint

    def _open(self, kind: SocketKind, *, ipv6: bool) -> Socket:
        opened = self._context.socket(kind, high_water=_QUEUE_FRAMES, max_frame_bytes=_MAX_FRAME_BYTES)
        opened.for_networks(ipv6=ipv6)
        return opened

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._endpoint.address.rpartition(":")[2])

    @property
    def num_malformed(self) -> int:
        """Messages that were no single frame, and connections that did not speak ZeroMQ."""
        self._num_malformed += self._endpoint.failed_handshakes()
        return self._num_malformed

    def connect(self, host: str, port: int) -> int:
        """A connection to an endpoint; never waits. Frames sent before it is there are queued."""
        self._next_route += 1
        dialled = self._dialled[self._next_route] = _Dialled(host, port)
        if _is_literal(host):
            self._open_dialled(dialled, host)
        else:
            dialled.lookup = _Lookup(host, port, self.wake)
        return self._next_route

    def _open_dialled(self, dialled: _Dialled, address: str) -> None:
        dialled.socket = self._open(SocketKind.DEALER, ipv6=":" in address)
        try:
            dialled.socket.connect(_tcp(address, str(dialled.port)))
        except SocketError as error:
            dialled.problem = f"cannot connect to {dialled.host!r}: {error}"
        self._waiter.add(dialled.socket)
        queue, dialled.queue = dialled.queue, []
        for frame in queue:
            self._count(dialled.socket.send(frame))

    def problem(self, route: int) -> str | None:
        """Why this connection will never come about; None: none is known."""
        dialled = self._dialled.get(route)
        return None if dialled is None else dialled.problem

    def hang_up(self, route: int) -> None:
        """End a dialled connection; what is queued is dropped."""
        dialled = self._dialled.pop(route, None)
        if dialled is not None and dialled.socket is not None:
            self._waiter.remove(dialled.socket)
            dialled.socket.close()

    def send(self, route: Route, frame: bytes) -> bool:
        """Queue a frame; False: it was dropped, because the peer does not read, or is not there (any more)."""
        if isinstance(route, bytes):
            return self._count(self._endpoint.send(route, frame))
        dialled = self._dialled.get(route)
        if dialled is None:
            return self._count(False)
        if dialled.socket is not None:
            return self._count(dialled.socket.send(frame))
        if len(dialled.queue) == _UNRESOLVED_FRAMES:
            return self._count(False)
        dialled.queue.append(frame)
        return True

    def _count(self, sent: bool) -> bool:
        self.num_dropped += not sent
        return sent

    def drain(self) -> list[Arrival]:
        """What has arrived, of each connection in order, without waiting. The rest of a flood is for the next call."""
        self._take_lookups()
        arrivals: list[Arrival] = []
        self._read_endpoint(arrivals)
        for route, dialled in self._dialled.items():
            if dialled.socket is not None:
                self._read_dialled(route, dialled.socket, arrivals)
        return arrivals

    def _take_lookups(self) -> None:
        for dialled in self._dialled.values():
            if (lookup := dialled.lookup) is None:
                continue
            if lookup.address is not None:
                dialled.lookup = None
                self._open_dialled(dialled, lookup.address)
            elif lookup.problem is not None:
                dialled.lookup, dialled.problem = None, lookup.problem

    def _read_endpoint(self, arrivals: list[Arrival]) -> None:
        for _ in range(_DRAIN_FRAMES):
            if (message := self._endpoint.receive_from()) is None:
                return
            parts, sender = message
            if len(parts) == 2:
                arrivals.append(Arrival(route=parts[0], frame=parts[1], sender=sender))
            else:
                self._num_malformed += 1

    def _read_dialled(self, route: int, dialled: Socket, arrivals: list[Arrival]) -> None:
        for _ in range(_DRAIN_FRAMES):
            if (message := dialled.receive_from()) is None:
                return
            parts, sender = message
            if len(parts) == 1:
                arrivals.append(Arrival(route=route, frame=parts[0], sender=sender))
            else:
                self._num_malformed += 1

    def wait(self, timeout_s: float) -> None:
        """Sleep until a frame is there, `wake` was called, or the time is over."""
        self._waiter.wait(timeout_s)

    def wake(self) -> None:
        """End a `wait`, from any thread; one that comes before it counts too."""
        self._waiter.wake()

    def close(self) -> None:
        """Close everything at once; what is queued is dropped."""
        for route in list(self._dialled):
            self.hang_up(route)
        self._endpoint.close()
        self._context.close()
        self._waiter.close()


def _is_literal(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _own_address(host: str) -> str:
    """An address to listen on."""
    if _is_literal(host):
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host!r} ({error}); give an address of this machine") from error
    return str(found[0][4][0])


def _tcp(address: str, port: str) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
