"""The sockets between a front and one engine process: msgpack frames over a Unix socket in a private folder.

The front binds, one engine connects (a ZeroMQ PAIR). Neither side ever waits to send: queues have no high-water mark,
because a loop that waits for a slow peer would stall every request. This file alone imports zmq.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq

from baton.core.errors import ConfigError, UserError
from baton.wire.engine import FromEngine, ToEngine

_LINGER_MS = 2000  # the engine's last word must leave before its process ends
_FRAMES_A_TURN = 64  # then other tasks of the front's event loop get a turn


def _socket(context: zmq.Context[zmq.Socket[bytes]], linger_ms: int) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, linger_ms)
    return socket


class _Decoder:
    """Frames to messages of one type; what is not one is counted and dropped."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.num_malformed = 0

    def decode(self, frame: bytes) -> Any:
        """The message, or None."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UserError):  # UserError: a value that a core type refuses
            self.num_malformed += 1
            return None


class EngineSocket:
    """The engine's end. Synchronous; used by one thread, except `wake`.

    Args:
        address: of the front's socket, as `FrontSocket.address` gives it.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, _LINGER_MS)
        self._socket.connect(address)
        self._decoder = _Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)

    @property
    def num_malformed(self) -> int:
        """Frames that were no message, so far."""
        return self._decoder.num_malformed

    def drain(self) -> list[ToEngine]:
        """Every message that has arrived, in order, without waiting."""
        messages: list[ToEngine] = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            message = self._decoder.decode(frame)
            if message is not None:
                messages.append(message)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message has arrived, `wake` was called, or the time is over."""
        self._poller.poll(int(timeout_s * 1000))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def wake(self) -> None:
        """End a `wait` from another thread; one that comes before it counts too."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_write, b"\0")

    def send(self, message: FromEngine) -> None:
        """Queue a message to the front; never waits."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Close; waits up to 2 s for what is queued to leave."""
        self._socket.close()
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)


class FrontSocket:
    """The front's end, on the running event loop: calls `receive` with each message.

    Args:
        receive: gets messages in order; must not raise.

    Raises:
        ConfigError: the folder for temporary files cannot hold a Unix socket.
    """

    def __init__(self, receive: Callable[[FromEngine], None]) -> None:
        self._receive = receive
        self._folder = Path(tempfile.mkdtemp(prefix="baton-"))  # mode 0700
        self.address = f"ipc://{self._folder / 'engine'}"
        self._context = zmq.Context()
        self._socket = _socket(self._context, 0)
        self._decoder = _Decoder(FromEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._closed = False
        try:
            self._socket.bind(self.address)
        except zmq.ZMQError as error:
            self._release()
            raise ConfigError(f"cannot make a Unix socket in {self._folder.parent} ({error}); set TMPDIR") from error
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._read)

    @property
    def num_malformed(self) -> int:
        """Frames that were no message, so far."""
        return self._decoder.num_malformed

    def send(self, message: ToEngine) -> bool:
        """Queue a message to the engine; False when there is none to take it."""
        if self._closed:
            return False
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            # The descriptor signals edges, and sending consumes one: look for messages that came meanwhile.
            self._loop.call_soon(self._read)
        return True

    def _read(self) -> None:
        for _ in range(_FRAMES_A_TURN):
            if self._closed:
                return
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self._decoder.decode(frame)
            if message is not None:
                self._receive(message)
        self._loop.call_soon(self._read)

    def forget_path(self) -> None:
        """Remove the socket's name once the engine is connected: even a killed front then leaves no file."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close at once; what is queued is dropped."""
        if self._closed:
            return
        self._loop.remove_reader(self._fd)
        self._release()

    def _release(self) -> None:
        self._closed = True
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
