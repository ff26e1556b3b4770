"""A process with one LinkEngine: commands are JSON lines on stdin, what it is told and logs are JSON lines on stdout.

Commands: ["dial", host, port], ["say", engine_id, transfer_id] (NotNeeded of a taker, Expired of a giver).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from baton.core.handoff import Role
from baton.wire.handoff import Expired, NotNeeded
from tests.transfer.peers_harness import LinkEngine

_POLL_S = 0.01


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _say(["log", record.getMessage()])


def _say(line: Any) -> None:
    print(
        json.dumps(line, default=lambda value: [type(value).__name__, getattr(value, "transfer_id", None)]), flush=True
    )


def _commands(buffer: bytearray) -> list[Any]:
    """Whole lines that are there. Raises EOFError when the parent has gone."""
    try:
        data = os.read(0, 65536)
    except BlockingIOError:
        return []
    if not data:
        raise EOFError
    buffer += data
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    return [json.loads(line) for line in lines]


def _obey(engine: LinkEngine, command: list[Any]) -> None:
    match command:
        case ["dial", host, port]:
            engine.peers.dial(host, port)
        case ["say", engine_id, transfer_id]:
            kind = NotNeeded if engine.card.role is Role.DECODE else Expired
            engine.peers.send(engine_id, kind(transfer_id=transfer_id))


def main() -> None:
    """Run until stdin ends."""
    name, role, port, silence_s = sys.argv[1:]
    logging.getLogger("baton").addHandler(_Log())
    logging.getLogger("baton").setLevel(logging.INFO)
    engine = LinkEngine(name, Role(role), port=int(port), silence_s=float(silence_s))
    os.set_blocking(0, False)
    _say(["port", engine.port])
    buffer, told = bytearray(), 0
    while True:
        try:
            for command in _commands(buffer):
                _obey(engine, command)
        except EOFError:
            engine.close()
            return
        engine.turn()
        for line in engine.recorder.told[told:]:
            _say(line)
        told = len(engine.recorder.told)
        engine.sockets.wait(_POLL_S)


if __name__ == "__main__":
    main()
