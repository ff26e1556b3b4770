"""Workers that do what a test tells them to, over real HTTP, and remember what they were asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send

WAIT_S = 20.0
_TRANSFER_S = 0.05  # a decode worker has its first token after the prefill worker has answered
TICKET = {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": "h", "remote_port": 7, "odd": [1, 2]}


@dataclass
class Seen:
    """A request that a worker got. left: its sender closed the connection before the answer was complete."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    left: bool = False
    complete: bool = False

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body.get("kv_transfer_params") or {}
        return found


class Answering:
    """What a script answers with."""

    def __init__(self, send: Send, *, shows_tokens: bool) -> None:
        self._send = send
        self._shows_tokens = shows_tokens

    async def whole(self, value: Any, status: int = 200, **headers: str) -> None:
        raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        raw.append((b"content-type", b"application/json"))
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def raw(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def event(self, value: Any, ids: list[int] | None = None) -> None:
        comment = "" if ids is None or not self._shows_tokens else ": " + " ".join(map(str, [0, *ids])) + "\n"
        await self.raw(f"{comment}data: {json.dumps(value)}\n\n".encode())

    async def done(self) -> None:
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


Script = Callable[[Seen, Answering], Awaitable[None]]


class DiedError(Exception):
    """Raised by a script: the connection breaks."""


class ScriptedWorker:
    """One server. seen: the generations it was asked for; withdrawn: transfer_ids."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self.withdrawn: list[str] = []
        self.news = threading.Condition()
        self.url = ""

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that the worker sees."""
        with self.news:
            assert self.news.wait_for(condition, WAIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["method"] == "DELETE":
            self._note(lambda: self.withdrawn.append(scope["path"].rpartition("/")[2]))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        seen = Seen(scope["method"], scope["path"], headers, json.loads(raw or b"{}"))
        self._note(lambda: self.seen.append(seen))
        answering = Answering(send, shows_tokens=headers.get("x-baton-tokens") == "1")
        script: asyncio.Task[None] = asyncio.ensure_future(self.script(seen, answering))
        watching = asyncio.ensure_future(receive())
        await asyncio.wait((script, watching), return_when=asyncio.FIRST_COMPLETED)
        if script.done():
            watching.cancel()
            self._note(lambda: setattr(seen, "complete", True))
            script.result()
        else:
            script.cancel()
            self._note(lambda: setattr(seen, "left", True))

    def _note(self, change: Callable[[], Any]) -> None:
        with self.news:
            change()
            self.news.notify_all()


@contextmanager
def scripted(*scripts: Script) -> Iterator[list[ScriptedWorker]]:
    """A worker for each script, each on a free port."""
    workers = [ScriptedWorker(script) for script in scripts]
    servers = [_start(worker) for worker in workers]
    try:
        yield workers
    finally:
        for server, _ in servers:
            server.should_exit = server.force_exit = True
        for _, thread in servers:
            thread.join(WAIT_S)


def _start(worker: ScriptedWorker) -> tuple[uvicorn.Server, threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))
    worker.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(worker, lifespan="off", log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    return server, thread


def chunk(text: str, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a completion."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-a", "object": "text_completion", "created": 5, "model": "m", "choices": [choice], **fields}


def usage(prompt: int, output: int, cached: int | None = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return found if cached is None else {**found, "prompt_tokens_details": {"cached_tokens": cached}}


async def give(seen: Seen, answer: Answering) -> None:
    """As a prefill worker: token 1 is "a" (id 97)."""
    first = chunk("a", "length", usage=usage(8, 1, 3), created=4)
    await answer.whole({**first, "kv_transfer_params": {**TICKET, "transfer_id": seen.params["transfer_id"]}})


def take(text: str, *, pieces: int = 1, then: Callable[[Answering], Awaitable[None]] | None = None) -> Script:
    """As a decode worker: the text, a token a character and `pieces` of them an event. A request that resumes
    begins with the text of those tokens.

    Args:
        then: instead of an end.
    """

    async def script(seen: Seen, answer: Answering) -> None:
        await asyncio.sleep(_TRANSFER_S)
        if not seen.body.get("stream"):
            await answer.whole(chunk(text, "stop", usage=usage(8, len(text), 8)))
            return
        await answer.stream()
        for start in range(0, len(text), pieces):
            part = text[start : start + pieces]
            last = then is None and start + pieces >= len(text)
            await answer.event(chunk(part, "stop" if last else None), list(part.encode()))
            await asyncio.sleep(0.002)
        if then is not None:
            await then(answer)
            return
        options = seen.body.get("stream_options") or {}
        if options.get("include_usage"):
            await answer.event(chunk("", usage=usage(8, len(text), 8)) | {"choices": []})
        await answer.done()

    return script


async def die(answer: Answering) -> None:
    """Break the connection."""
    await asyncio.sleep(0.02)  # what was sent before has left
    raise DiedError


async def wait(seen: Seen, answer: Answering) -> None:
    """Say nothing."""
    await asyncio.sleep(60)


def refuse(status: int, **headers: str) -> Script:
    """An error of that status."""

    async def script(seen: Seen, answer: Answering) -> None:
        error = {"message": f"refused with {status}", "type": "T", "param": "n", "code": status}
        await answer.whole({"error": error}, status, **headers)

    return script
