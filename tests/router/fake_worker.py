"""A worker for looks: a small HTTP server that says what it is told to say.

As a process: fake_worker.py PORT ROLE INCARNATION
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Self


def baton_stats(role: str = "mixed", incarnation: str = "i1", **changes: Any) -> dict[str, Any]:
    """As src/baton/server/stats.py answers, in what a router reads: a mixed one has no peer.

    `changes` by top-level or `served` name.
    """
    served = {
        "model": "m",
        "models": ["m"],
        "fingerprint": "f",
        "incarnation": incarnation,
        "role": role,
        "block_tokens": 16,
        "num_blocks": 100,
        "max_num_seqs": 4,
        "max_model_len": 512,
    }
    body: dict[str, Any] = {"state": "ready", "engine_silent_s": 0.0, "pools": {"used_blocks": 0}}
    if role != "mixed":
        body["handoff"] = {
            "role": role,
            "engine_id": incarnation,
            "host": "127.0.0.1",
            "port": 5600,
            "tp_size": 1,
            "pp_size": 1,
            "num_bytes": 12,
        }
    served.update({name: changes.pop(name) for name in list(changes) if name in served})
    return body | {"served": served} | changes


class FakeWorker:
    """A context. `answers` by path: a value for 200, a status, or None for no answer at all."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()

    async def start(self) -> None:
        """Listen, after a stop on the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """As a process that was killed: refuse connections, and close those that are open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._clients:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split()[1].decode()
                self.asked.append(path)
                answer = self.answers.get(path, 404)
                if answer is None:
                    await asyncio.sleep(60)
                status = answer if isinstance(answer, int) else 200
                body = json.dumps({} if isinstance(answer, int) else answer).encode()
                kept = b"close" if b"connection: close" in head.lower() else b"keep-alive"
                writer.write(b"HTTP/1.1 %d X\r\nconnection: %s\r\n" % (status, kept))
                writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
                if kept == b"close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the last: the loop ends
            pass
        finally:
            self._clients.discard(writer)
            writer.close()


async def _main() -> None:
    worker = FakeWorker({"/stats": baton_stats(sys.argv[2], sys.argv[3])})
    worker.port = int(sys.argv[1])
    async with worker:
        print(worker.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
