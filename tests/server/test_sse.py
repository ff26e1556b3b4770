"""The response that sends events: clients that read nothing, and clients that read late."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from baton.server.config import ServerConfig
from baton.web.errors import ApiError
from baton.web.sse import DONE, EventStream
from tests.server.harness import Server, run_server
from tests.server.test_limits import COMPLETIONS, eventually

pytestmark = pytest.mark.slow


async def pieces(error: Exception | None = None) -> AsyncIterator[bytes]:
    yield b"data: 1\n\n"
    if error is not None:
        raise error


async def receive() -> dict[str, Any]:
    raise AssertionError("not read")


@pytest.mark.parametrize("stuck_at", [0, 1, 2], ids=["headers", "event", "done"])
def test_a_send_that_waits_for_its_client_ends_at_the_deadline(stuck_at: int) -> None:
    """The deadline is in 1.3 s, after the second that every piece is given; what the stream holds is let go."""
    closed: list[float] = []
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if len(sent) == stuck_at:
            await asyncio.Event().wait()
        sent.append(message)

    async def run() -> None:
        resources = AsyncExitStack()
        resources.callback(lambda: closed.append(time.monotonic()))
        stream = EventStream(pieces(), resources, asyncio.get_running_loop().time() + 1.3)
        await asyncio.wait_for(stream({}, receive, send), 10)

    start = time.monotonic()
    asyncio.run(run())
    assert len(sent) == stuck_at
    assert 1.2 < closed[0] - start < 3


def test_what_comes_after_the_deadline_is_sent_to_a_client_that_reads() -> None:
    """The event that says 504 is behind the deadline by nature."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0.01)
        sent.append(message)

    async def run() -> None:
        stream = EventStream(pieces(ApiError(504, "late")), AsyncExitStack(), asyncio.get_running_loop().time() - 5)
        await stream({}, receive, send)

    asyncio.run(run())
    assert sent[-1]["body"].startswith(b'data: {"error"') and sent[-1]["body"].endswith(DONE)


def test_a_client_that_never_reads_holds_its_request_no_longer_than_the_deadline(tokenizer_folder: Path) -> None:
    """Its socket takes 4 KiB and nothing is read. `num_open` counts answers that are not over."""
    with run_server(tokenizer_folder, ServerConfig(request_timeout_s=3.0)) as server:
        body = {"prompt": ["x"] * 8, "n": 16, "max_tokens": 2000, "stream": True, "logprobs": 20}
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = server.url.removeprefix("http://").split(":")
            client.connect((host, int(port)))
            content = json.dumps(body).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
            client.sendall(head.encode() + content)
            eventually(lambda: load(server) == 1)
            eventually(lambda: load(server) == 0, 8.0)


def load(server: Server) -> int:
    with server.http() as http:
        return int(http.get("/load").json()["server_load"])
