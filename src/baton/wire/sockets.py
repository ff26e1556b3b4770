"""ZeroMQ sockets that never wait, and a wait for several of them that other threads can end. Alone imports zmq."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from enum import Enum

import zmq
from zmq.utils.monitor import recv_monitor_message

_FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class SocketKind(Enum):
    """PAIR: one peer. ROUTER: many, each named by the first part of a message. DEALER: a ROUTER's peer."""

    PAIR = zmq.PAIR
    ROUTER = zmq.ROUTER
    DEALER = zmq.DEALER


class SocketError(Exception):
    """An address cannot be bound or connected to."""


class Context:
    """Owns sockets and the thread that moves their bytes."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def socket(self, kind: SocketKind, *, high_water: int, linger_ms: int = 0, max_frame_bytes: int = -1) -> Socket:
        """A socket that is neither bound nor connected.

        Args:
            high_water: most messages in the queue of one peer, each way; 0: no limit.
            linger_ms: how long `close` of the context waits for queued messages to leave.
            max_frame_bytes: a peer that sends a longer frame is disconnected; -1: no limit.
        """
        socket = self._context.socket(kind.value)
        socket.setsockopt(zmq.SNDHWM, high_water)
        socket.setsockopt(zmq.RCVHWM, high_water)
        socket.setsockopt(zmq.LINGER, linger_ms)
        socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        if kind is SocketKind.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what cannot be sent is reported, not lost in silence
        return Socket(socket)

    def close(self) -> None:
        """End; all sockets must be closed. Waits for their linger times."""
        self._context.term()


class Socket:
    """One end. Used by one thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.zmq = socket
        self._monitor: zmq.Socket[bytes] | None = None

    def for_networks(self, *, ipv6: bool) -> None:
        """Options of a TCP socket, before bind or connect: dead and half-open connections come to an end."""
        self.zmq.setsockopt(zmq.IPV6, int(ipv6))
        self.zmq.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        self.zmq.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self.zmq.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
        self.zmq.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
        self.zmq.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        self.zmq.setsockopt(zmq.RECONNECT_IVL, 100)
        self.zmq.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)

    def count_failed_handshakes(self) -> None:
        """Let `failed_handshakes` see connections that do not speak ZeroMQ. Before bind."""
        self._monitor = self.zmq.get_monitor_socket(_FAILED_HANDSHAKES)

    def failed_handshakes(self) -> int:
        """Connections since the last call that did not speak ZeroMQ."""
        count = 0
        while self._monitor is not None and self._monitor.poll(0):
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            count += 1
        return count

    @property
    def fd(self) -> int:
        """A descriptor that signals edges: after one, read until there is nothing."""
        return int(self.zmq.getsockopt(zmq.FD))

    @property
    def address(self) -> str:
        """Last address bound to, with the real port."""
        return self.zmq.getsockopt_string(zmq.LAST_ENDPOINT)

    def bind(self, address: str) -> None:
        """Listen.

        Raises:
            SocketError: it is in use, or not of this machine.
        """
        try:
            self.zmq.bind(address)
        except zmq.ZMQError as error:
            raise SocketError(str(error)) from error

    def connect(self, address: str) -> None:
        """Connect, and again after each disconnection; never waits.

        Raises:
            SocketError: that is no address.
        """
        try:
            self.zmq.connect(address)
        except zmq.ZMQError as error:
            raise SocketError(str(error)) from error

    def send(self, *parts: bytes) -> bool:
        """Queue a message; False: the queue is full, or nobody has that name."""
        try:
            self.zmq.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def receive(self) -> bytes | None:
        """The next frame, or None."""
        try:
            return self.zmq.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def receive_from(self) -> tuple[list[bytes], str] | None:
        """The parts of the next message and the IP address it came from (empty when unknown), or None."""
        try:
            frames = self.zmq.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        try:
            sender = str(frames[-1].get("Peer-Address"))
        except (zmq.ZMQError, ValueError, KeyError):
            sender = ""
        return [frame.bytes for frame in frames], sender

    def close(self) -> None:
        """Close; what is queued still leaves within the linger time."""
        if self._monitor is not None:
            self.zmq.disable_monitor()
            self._monitor.close()
            self._monitor = None
        self.zmq.close()


class Waiter:
    """Sleeps until one of its sockets has a message, or another thread calls `wake`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._read, zmq.POLLIN)
        self._lock = threading.Lock()  # a descriptor of a closed pipe may belong to something else already
        self._closed = False

    def add(self, socket: Socket) -> None:
        """Wait for this socket's messages too."""
        self._poller.register(socket.zmq, zmq.POLLIN)

    def remove(self, socket: Socket) -> None:
        """Wait for it no longer; before it is closed."""
        self._poller.unregister(socket.zmq)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message is there, `wake` was called, or the time is over."""
        self._poller.poll(int(timeout_s * 1000))
        with suppress(BlockingIOError):
            os.read(self._read, 4096)

    def wake(self) -> None:
        """End a `wait`, from any thread and at any time; one that comes before it counts too."""
        with self._lock, suppress(BlockingIOError):  # the pipe is full of wake-ups already
            if not self._closed:
                os.write(self._write, b"\0")

    def close(self) -> None:
        """Release the pipe."""
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
