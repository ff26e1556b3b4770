"""A server that answers at once, for measuring routers: python benchmarks/stub_worker.py PORT ROLE KIND CHUNKS GAP_MS

ROLE is prefill or decode. KIND is openai (a server of others, as routers for vLLM's connectors expect it) or baton (it
answers /stats, and puts the ids of tokens into its streams where it is asked to). An answer streams CHUNKS chunks of
one token, GAP_MS milliseconds apart; with 0 each is a write of its own all the same.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

import uvloop

ENGINE_ID = "stub"
TICKET = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": ENGINE_ID,
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_block_ids": [[1]],
    "tp_size": 1,
    "pp_size": 1,
}
LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
STREAMS = re.compile(rb'"stream":\s*true')


def completion(text: str, finish_reason: str | None, **more: Any) -> bytes:
    """A completion, or a chunk of one."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    head = {"id": "cmpl-stub", "object": "text_completion", "created": 1, "model": "model", "choices": [choice]}
    return json.dumps({**head, **more}, separators=(",", ":")).encode()


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer."""
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return head + body


def stats(role: str) -> bytes:
    """GET /stats of a server of Baton's."""
    served: dict[str, Any] = {
        "model": "model",
        "models": ["model"],
        "fingerprint": "f",
        "incarnation": ENGINE_ID,
        "role": role,
    }
    served |= {"block_tokens": 16, "num_blocks": 100_000, "max_num_seqs": 1000, "max_model_len": 4096}
    handoff: dict[str, Any] = {"role": role, "engine_id": ENGINE_ID, "host": "127.0.0.1", "port": 5600}
    handoff |= {"tp_size": 1, "pp_size": 1}
    return json.dumps({"state": "ready", "engine_silent_s": 0, "served": served, "handoff": handoff}).encode()


class Stub:
    """What all connections answer with."""

    def __init__(self, role: str, kind: str, num_chunks: int, gap_s: float) -> None:
        usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
        self.ours, self.decodes, self.gap_s = kind == "baton", role == "decode", gap_s
        self.whole = answer(completion(" a", "length", usage=usage, kv_transfer_params=TICKET))
        self.stats = answer(stats(role)) if self.ours else answer(b"{}", b"404 Not Found")
        ends = [None] * (num_chunks - 1) + ["length"]
        self.events = [b"data: " + completion(" a", end) + b"\n\n" for end in ends]

    def stream(self, *, with_ids: bool) -> list[bytes]:
        """The writes of a stream: its head, its chunks, its end."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        comment = b": 0 7\n" if with_ids else b""
        events = [comment + event for event in self.events]
        last = b"data: [DONE]\n\n"
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in (*events, last)]
        return [head, *chunks, b"0\r\n\r\n"]


class Connection(asyncio.Protocol):
    """One request after another."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._data = b""
        self._transport: Any = None
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self._data, 0, end)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size:
                return
            request, self._data = self._data[:size], self._data[size:]
            self._serve(request[:end], request[end + 4 :])

    def _serve(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/completions":
            self._complete(head, body)
        elif path == b"/v1/models":
            self._transport.write(answer(b'{"object":"list","data":[{"id":"model","object":"model"}]}'))
        elif path == b"/stats":
            self._transport.write(self._stub.stats)
        else:
            known = path in (b"/health", b"/ready")
            self._transport.write(answer(b"{}", b"200 OK" if known else b"404 Not Found"))

    def _complete(self, head: bytes, body: bytes) -> None:
        if not (self._stub.decodes and STREAMS.search(body)):
            self._transport.write(self._stub.whole)
            return
        pieces = self._stub.stream(with_ids=self._stub.ours and b"x-baton-tokens" in head)
        self._streaming = asyncio.get_running_loop().create_task(self._stream(pieces))

    async def _stream(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._transport.write(piece)
            await asyncio.sleep(self._stub.gap_s)


async def serve(port: int, stub: Stub) -> None:
    """Until it is killed."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stub), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    given_port, given_role, given_kind, given_chunks, given_gap_ms = sys.argv[1:]
    made = Stub(given_role, given_kind, int(given_chunks), float(given_gap_ms) / 1e3)
    uvloop.run(serve(int(given_port), made))
