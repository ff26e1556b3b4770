"""A server of known latencies, in a process of its own: what it did, and when, by the clock that the client has too.

    python tests/bench/stub.py --ttft-ms 200 --step-ms 50

Prints its URL. It streams `max_tokens` tokens, the first after about `--ttft-ms` (more for every request: by 0 to 4
fifths), the others about every `--step-ms`. GET /log tells of each request when it was read and when each token was
written (time.perf_counter, which all processes of a machine share on Linux). No HTTP library: cheap enough for 500
requests a second on half a core.

A prompt whose first token id is below 10 is one of the FAULTS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

STATUS_500, ERROR_EVENT, CUT_OFF, NO_DONE = range(4)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Stub:
    """The server. log: one entry a request that it answered."""

    ttft_s: float
    step_s: float
    models: list[str]
    answer_text: str | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await read_head(reader):
                method, path, length = head
                body = await reader.readexactly(length)
                if not await self.answer(method, path, body, time.perf_counter(), writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, method: str, path: str, body: bytes, now_s: float, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the connection stays open."""
        if path.endswith("completions"):
            ask = json.loads(body)
            if ask.get("stream"):
                return await self.stream(ask, now_s, writer, chat="chat" in path)
            return self.quiz(ask, writer)
        if path == "/log":
            whole(writer, 200, self.log)
        elif path == "/v1/models":
            whole(writer, 200, {"data": [{"id": name} for name in self.models]})
        elif path == "/tokenize":
            whole(writer, 200, {"count": len(json.loads(body)["prompt"].split())})
        else:
            whole(writer, 404, {"error": {"message": "no such path"}})
        return True

    def quiz(self, ask: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """A whole answer: the number of characters of the prompt, or with `--answer` that; 500 to "refuse this"."""
        if "refuse this" in ask["prompt"]:
            whole(writer, 500, {"error": {"message": "as asked for"}})
            return True
        text = f"It is 1,{len(ask['prompt']):03}." if self.answer_text is None else self.answer_text
        choice = {"text": text, "token_ids": [ord(letter) for letter in text]}
        whole(writer, 200, {"choices": [choice], "usage": {"completion_tokens": len(text)}})
        return True

    async def stream(self, ask: dict[str, Any], now_s: float, writer: asyncio.StreamWriter, *, chat: bool) -> bool:
        number, self.count = self.count, self.count + 1
        fault = ask["prompt"][0] if not chat and isinstance(ask["prompt"], list) and ask["prompt"][0] < 10 else None
        if fault == STATUS_500:
            whole(writer, 500, {"error": {"message": "as asked for"}})
            return True
        written: list[float] = []
        self.log.append({"read_s": now_s, "written_s": written, "tokens": ask["max_tokens"]})
        due_s = now_s + self.ttft_s * (1 + number % 5 / 5)
        for index in range(ask["max_tokens"]):
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            events = ([role(ask)] if chat else []) if index == 0 else []
            if fault == ERROR_EVENT and index == 1:
                chunk(writer, {"error": {"message": "broken inside the stream"}})
            if fault == CUT_OFF and index == 1:
                return False
            written.append(time.perf_counter())
            chunk(writer, *events, token(ask, index, chat=chat), first=index == 0)
            due_s += self.step_s
        chunk(writer, usage(ask))
        if fault != NO_DONE:
            data(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, int] | None:
    """(method, path, bytes of the body); None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = head.split(b" ", 2)
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return method.decode(), path.decode(), int(length[1]) if length else 0


def token(ask: dict[str, Any], index: int, *, chat: bool) -> dict[str, Any]:
    text = f" t{index}"
    choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
    return {"id": "x", "object": "y", "created": 0, "model": ask["model"], "choices": [{"index": 0, **choice}]}


def role(ask: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "model": ask["model"]}


def usage(ask: dict[str, Any]) -> dict[str, Any]:
    num_input = len(ask["prompt"]) if "prompt" in ask else 7
    return {"choices": [], "usage": {"prompt_tokens": num_input, "completion_tokens": ask["max_tokens"]}}


def chunk(writer: asyncio.StreamWriter, *values: dict[str, Any], first: bool = False) -> None:
    """Events, in one write; with the head of the answer before the first."""
    if first:
        writer.write(HEAD)
    data(writer, b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values))


def data(writer: asyncio.StreamWriter, what: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(what), what))


def whole(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--answer")
    args = parser.parse_args()
    stub = Stub(args.ttft_ms / 1e3, args.step_ms / 1e3, ["stub-model"], args.answer)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
