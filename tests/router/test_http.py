"""The router's HTTP client against servers that speak bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from baton.router import http as module
from baton.router.http import Http, HttpError

OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Bytes:
    """A server that answers each request with the next script. requests: heads and bodies."""

    scripts: Sequence[Callable[[asyncio.StreamWriter], Awaitable[None]]]
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    lost: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = 0
                for line in head.lower().split(b"\r\n"):
                    size = int(line[15:]) if line.startswith(b"content-length:") else size
                self.requests.append(head + await reader.readexactly(size))
                await self.scripts[min(len(self.requests), len(self.scripts)) - 1](writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()


def say(*parts: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Parts of an answer, apart from each other."""

    async def script(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.005)

    return script


def then_close(script: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def closing(writer: asyncio.StreamWriter) -> None:
        await script(writer)
        writer.close()

    return closing


@asynccontextmanager
async def serving(*scripts: Any) -> AsyncIterator[tuple[Http, Bytes]]:
    server = Bytes(scripts)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening, Http() as http:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield http, server
        await http.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """On the loop that the router runs on."""

    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


@pytest.mark.parametrize(
    "parts",
    [
        (OK + b"content-length: 5\r\n\r\nhello",),
        (OK[:9], OK[9:] + b"Content-Le", b"ngth: 5\r\n", b"\r\n", b"he", b"llo"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r", b"\nhe\r\n3\r\nl", b"lo\r\n", b"0\r\n\r", b"\n"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK + b"content-length: 5\r\n\r\nhello"),
    ],
)
def test_answers_and_one_connection_for_all(parts: tuple[bytes, ...]) -> None:
    async def work() -> None:
        async with serving(say(*parts)) as (http, server):
            for _ in range(3):
                reply = await http.fetch("GET", server.url + "/a?b=c", timeout_s=5)
                assert (reply.status, reply.body) == (200, b"hello")
            assert server.connections == 1 and server.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")

    run(work())


def test_an_answer_that_ends_with_its_connection() -> None:
    async def work() -> None:
        async with serving(then_close(say(OK + b"\r\n", b"hel", b"lo"))) as (http, server):
            for _ in range(2):
                assert (await http.fetch("GET", server.url, timeout_s=5)).body == b"hello"
            assert server.connections == 2

    run(work())


def test_connection_close_is_heeded() -> None:
    async def work() -> None:
        async with serving(say(OK + b"connection: close\r\ncontent-length: 0\r\n\r\n")) as (http, server):
            for _ in range(2):
                assert (await http.fetch("GET", server.url, timeout_s=5)).body == b""
            assert server.connections == 2

    run(work())


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (OK[:12],),
        (OK + b"content-length: 5\r\n\r\nhel",),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel",),
        (OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",),
        (b"SSH-2.0-OpenSSH\r\n\r\n",),
    ],
)
def test_what_breaks_off_is_an_error(parts: tuple[bytes, ...]) -> None:
    async def work() -> None:
        async with serving(then_close(say(*parts))) as (http, server):
            with pytest.raises(HttpError) as caught:
                await http.fetch("GET", server.url, timeout_s=5)
            assert caught.value.status == 0 and not caught.value.refused

    run(work())


def test_pieces_come_as_they_are_sent() -> None:
    async def work() -> None:
        go = asyncio.Event()

        async def script(writer: asyncio.StreamWriter) -> None:
            writer.write(OK + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
            await go.wait()
            writer.write(b"1\r\nb\r\n1\r\nc\r\n0\r\n\r\n")

        async with serving(script) as (http, server):
            incoming = await http.open("POST", server.url, headers={"x-a": "e"}, body=b"{}")
            assert await incoming.next() == b"a"
            go.set()
            assert await incoming.rest() == b"bc" and await incoming.next() == b""
            assert server.requests == [
                b"POST / HTTP/1.1\r\nHost: " + server.url[7:].encode() + b"\r\nx-a: e\r\nContent-Length: 2\r\n\r\n{}"
            ]

    run(work())


def test_a_fast_server_waits_for_a_slow_reader() -> None:
    """64 MiB are sent; what is buffered here stays near a MiB."""

    async def work() -> None:
        sent = 0

        async def script(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(OK + b"content-length: %d\r\n\r\n" % (64 << 20))
            for _ in range(64):
                writer.write(b"x" * (1 << 20))
                await writer.drain()
                sent += 1

        async with serving(script) as (http, server):
            incoming = await http.open("GET", server.url)
            await asyncio.sleep(0.3)
            assert sent < 32
            assert len(await incoming.rest()) == 64 << 20
            assert (await http.fetch("GET", server.url, timeout_s=20)).status == 200 and server.connections == 1

    run(work())


def test_closing_and_cancelling_end_the_connection() -> None:
    async def work() -> None:
        async def stall(writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0)

        half = say(OK + b"content-length: 5\r\n\r\nhel")
        async with serving(half, stall, half) as (http, server):
            incoming = await http.open("GET", server.url)
            incoming.close()
            with pytest.raises(HttpError):
                await asyncio.wait_for(incoming.rest(), 5)
            asking = asyncio.create_task(http.open("GET", server.url))
            await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.wait({asking})
            with pytest.raises(HttpError, match=r"within 0\.1 s"):
                await http.fetch("GET", server.url, timeout_s=0.1)
            await asyncio.sleep(0.05)
            assert server.connections == server.lost == 3

    run(work())


def test_a_connection_that_was_idle_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(say(OK + b"content-length: 0\r\n\r\n")) as (http, server):
            for pause_s in (0.0, 0.1, 0.0):
                await asyncio.sleep(pause_s)
                await http.fetch("GET", server.url, timeout_s=5)
            assert server.connections == 2

    monkeypatch.setattr(module, "_KEPT_S", 0.05)
    run(work())


def test_an_answer_that_nobody_asked_for() -> None:
    """It is not taken for that of the next request."""

    async def work() -> None:
        empty = OK + b"content-length: 0\r\n\r\n"
        wrong = b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"
        async with serving(say(empty + wrong), say(empty)) as (http, server):
            assert (await http.fetch("GET", server.url, timeout_s=5)).status == 200
            await asyncio.sleep(0.05)
            assert (await http.fetch("GET", server.url, timeout_s=5)).status == 200

    run(work())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens(host: str) -> None:
    async def work() -> None:
        async with Http() as http:
            with pytest.raises(HttpError) as caught:
                await http.get_json(f"http://{host}:1/", timeout_s=5)
            assert caught.value.refused

    run(work())


@pytest.mark.parametrize("url", ["ftp://a/", "http://", "http://a:b/", "http://a/\r\nx: y", "http://a/b c", "x"])
def test_what_is_no_url(url: str) -> None:
    async def work() -> None:
        async with Http() as http:
            with pytest.raises(HttpError):
                await http.open("GET", url)

    run(work())


def test_headers_cannot_be_smuggled() -> None:
    async def work() -> None:
        async with serving(say(OK + b"content-length: 0\r\n\r\n")) as (http, server):
            with pytest.raises(HttpError, match="injection"):
                await http.open("GET", server.url, headers={"authorization": "a\r\nx: y"})
            assert server.requests == []

    run(work())


def test_json() -> None:
    async def work() -> None:
        answers = [(200, b'{"a": 1}'), (200, b"{"), (404, b"{}")]
        scripts = [say(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (s, len(b)) + b) for s, b in answers]
        async with serving(*scripts) as (http, server):
            assert await http.get_json(server.url, timeout_s=5) == {"a": 1}
            for status in (200, 404):
                with pytest.raises(HttpError) as caught:
                    await http.get_json(server.url, timeout_s=5)
                assert caught.value.status == status

    run(work())
