"""The sockets between a front and one engine process: msgpack frames over a Unix socket in a private folder.

The front binds, one engine connects (a ZeroMQ PAIR). Neither side ever waits to send: queues have no high-water mark,
because a loop that waits for a slow peer would stall every request.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError
from baton.wire.decoder import Decoder
from baton.wire.engine import FromEngine, ToEngine
from baton.wire.sockets import Context, SocketError, SocketKind, Waiter

_LINGER_MS = 2000  # the engine's last word must leave before its process ends
_FRAMES_A_TURN = 64  # then other tasks of the front's event loop get a turn


class EngineSocket:
    """The engine's end. Synchronous; used by one thread, except `wake`.

    Args:
        address: of the front's socket, as `FrontSocket.address` gives it.
    """

    def __init__(self, address: str) -> None:
        self._context = Context()
        self._socket = self._context.socket(SocketKind.PAIR, high_water=0, linger_ms=_LINGER_MS)
        self._socket.connect(address)
        self._decoder = Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._waiter = Waiter()
        self._waiter.add(self._socket)

    @property
    def num_malformed(self) -> int:
        """Frames that were no message, so far."""
        return self._decoder.num_malformed

    def drain(self) -> list[ToEngine]:
        """Every message that has arrived, in order, without waiting."""
        messages: list[ToEngine] = []
        while (frame := self._socket.receive()) is not None:
            message = self._decoder.decode(frame)
            if message is not None:
                messages.append(message)
        return messages

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message has arrived, `wake` was called, or the time is over."""
        self._waiter.wait(timeout_s)

    def wake(self) -> None:
        """End a `wait` from another thread; one that comes before it counts too."""
        self._waiter.wake()

    def send(self, message: FromEngine) -> None:
        """Queue a message to the front; never waits."""
        self._socket.send(self._encoder.encode(message))

    def close(self) -> None:
        """Close; waits up to 2 s for what is queued to leave."""
        self._socket.close()
        self._context.close()
        self._waiter.close()


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
        self._context = Context()
        self._socket = self._context.socket(SocketKind.PAIR, high_water=0)
        self._decoder = Decoder(FromEngine)
        self._encoder = msgspec.msgpack.Encoder()
        self._closed = False
        try:
            self._socket.bind(self.address)
        except SocketError as error:
            self._release()
            raise ConfigError(f"cannot make a Unix socket in {self._folder.parent} ({error}); set TMPDIR") from error
        self._loop = asyncio.get_running_loop()
        self._fd = self._socket.fd
        self._loop.add_reader(self._fd, self._read)

    @property
    def num_malformed(self) -> int:
        """Frames that were no message, so far."""
        return self._decoder.num_malformed

    def send(self, message: ToEngine) -> bool:
        """Queue a message to the engine; False when there is none to take it."""
        if self._closed:
            return False
        sent = self._socket.send(self._encoder.encode(message))
        # The descriptor signals edges, and sending consumes one: look for messages that came meanwhile.
        self._loop.call_soon(self._read)
        return sent

    def _read(self) -> None:
        for _ in range(_FRAMES_A_TURN):
            if self._closed:
                return
            frame = self._socket.receive()
            if frame is None:
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
        self._context.close()
        shutil.rmtree(self._folder, ignore_errors=True)
