"""A streaming client that says exactly what it got, and can leave at any point. Plain sockets: 300 fit one core."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_LINGER_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one client saw.

    Attributes:
        status: HTTP status; 0 when it left before one came.
        left: the client closed the connection on purpose.
        token_ids: of all chunks; events: number of chunks.
        done: the stream ended with [DONE] and the connection's body was complete.
        error: message of an error event.
        gaps_s: between chunks, from the first one on.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    left: bool = False
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    events: int = 0
    done: bool = False
    error: str | None = None
    broken: str | None = None
    gaps_s: list[float] = field(default_factory=list)

    def kind(self, num_tokens: int) -> str:
        """One word for it: "complete", "left", "refused", or what is wrong.

        Args:
            num_tokens: that were asked for.
        """
        if self.left:
            return "left"
        if self.status in (429, 503):
            return "refused" if self.headers.get("retry-after") else f"{self.status} without Retry-After"
        if self.status != 200 or self.broken:
            return f"status {self.status} {self.broken}"
        if self.error is not None:
            return f"error: {self.error}"
        if not self.done:
            return "no [DONE]"
        if len(self.token_ids) != num_tokens or self.finish_reason != "length":
            return f"{len(self.token_ids)} tokens, {self.finish_reason}"
        return "complete"


class Connection:
    """One request over a connection of its own.

    Args:
        receive_bytes: size of the socket's receive buffer; None leaves it to the system.
    """

    def __init__(self, url: str, *, receive_bytes: int | None = None) -> None:
        self._url = url
        self._receive_bytes = receive_bytes
        self._socket: socket.socket | None = None
        self.outcome = Outcome()

    async def ask(self, path: str, body: dict[str, Any]) -> None:
        """Connect and send the request."""
        host = urlsplit(self._url)
        connection = socket.socket()
        self._socket = connection
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host.hostname, host.port))
        await loop.sock_sendall(connection, head.encode() + content)

    async def read(self, size: int = 65536) -> bytes:
        """Some bytes; empty at the end."""
        assert self._socket is not None
        return await asyncio.get_running_loop().sock_recv(self._socket, size)

    def leave(self, *, reset: bool) -> None:
        """Close on purpose, by FIN or by RST."""
        self.outcome.left = True
        self.close(reset=reset)

    def close(self, *, reset: bool = False) -> None:
        """Close; ignored the second time."""
        if self._socket is None:
            return
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self._socket.close()
        self._socket = None

    async def read_all(self, *, leave_after: int | None = None) -> Outcome:
        """Read to the end, or leave after a number of tokens."""
        parser = _Parser(self.outcome)
        try:
            while leave_after is None or len(self.outcome.token_ids) < leave_after:
                part = await self.read()
                if not part:
                    parser.close()
                    return self.outcome
                parser.feed(part)
            self.leave(reset=bool(leave_after % 2))
        except OSError as error:
            self.outcome.broken = repr(error)
        finally:
            self.close()
        return self.outcome


class _Parser:
    """Status line, headers, chunked body, events: fed with bytes, fills an Outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._raw = b""
        self._body = b""
        self._in_body = False
        self._whole = False
        self._last_s: float | None = None

    def feed(self, part: bytes) -> None:
        self._raw += part
        if not self._in_body and not self._head():
            return
        self._dechunk()
        if self._outcome.status == 200:
            self._events()

    def close(self) -> None:
        """The connection ended."""
        outcome = self._outcome
        if not self._in_body:
            outcome.broken = "closed without an answer"
        elif outcome.headers.get("transfer-encoding") == "chunked" and not self._whole:
            outcome.broken = "the body was cut"
        elif self._body and outcome.status == 200:
            outcome.broken = f"half an event: {self._body[:80]!r}"

    def _head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        self._outcome.status = int(first.split()[1])
        for line in lines:
            name, _, value = line.partition(":")
            self._outcome.headers[name.lower()] = value.strip()
        self._raw, self._in_body = rest, True
        return True

    def _dechunk(self) -> None:
        if self._outcome.headers.get("transfer-encoding") != "chunked":
            self._body, self._raw = self._body + self._raw, b""
            return
        at = 0
        while (line := self._raw.find(b"\r\n", at)) >= 0:
            size = int(self._raw[at:line], 16)
            if len(self._raw) < line + size + 4:
                break
            self._body += self._raw[line + 2 : line + 2 + size]
            at = line + size + 4
            self._whole = self._whole or size == 0
        self._raw = self._raw[at:]

    def _events(self) -> None:
        *blocks, self._body = self._body.split(b"\n\n")
        for block in blocks:
            assert block.startswith(b"data: "), block
            assert not self._outcome.done, "an event after [DONE]"
            self._event(block[6:])

    def _event(self, data: bytes) -> None:
        outcome = self._outcome
        if data == b"[DONE]":
            outcome.done = True
            return
        now_s = time.perf_counter()
        if self._last_s is not None:
            outcome.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        outcome.events += 1
        chunk = json.loads(data)
        if "error" in chunk:
            outcome.error = chunk["error"]["message"]
            return
        for choice in chunk["choices"]:
            outcome.token_ids += choice.get("token_ids", [])
            outcome.text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason


def ask_for(num_tokens: int, seed: int, num_prompt: int = 24) -> dict[str, Any]:
    """A streamed completion of exactly that many tokens; prompts of the same seed are the same."""
    draw = random.Random(seed)
    return {
        "prompt": [draw.randrange(256) for _ in range(num_prompt)],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "seed": seed,
    }


async def stream(url: str, body: dict[str, Any], *, leave_after: int | None = None) -> Outcome:
    """Ask and read to the end, or leave: after 0 tokens is right after the request was sent."""
    connection = Connection(url)
    try:
        await connection.ask("/v1/completions", body)
    except OSError as error:
        connection.outcome.broken = repr(error)
        connection.close()
        return connection.outcome
    return await connection.read_all(leave_after=leave_after)
