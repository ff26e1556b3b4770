"""A decode engine is killed in the middle of a stream: its client gets the tokens that a single server gives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from baton.router.config import Mode, RouterConfig
from baton.router.worker import WorkerSpec
from tests.cluster.serving import until
from tests.router.routed import Routed, real_fleet, routed
from tests.router.test_parity import Streamed, comparable, streamed
from tests.server.harness import events_of
from tests.transfer.servers import CHAT, COMPLETIONS, EngineServer, role, servers

pytestmark = pytest.mark.torch

PROMPT = "It was the best of times, it was the worst of times"
LONG: dict[str, Any] = {"max_tokens": 150, "temperature": 1.0, "seed": 5, "ignore_eos": True}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {**LONG, "prompt": PROMPT}),
    "penalties and logprobs": (COMPLETIONS, {**LONG, "prompt": PROMPT, "presence_penalty": 1.0, "logprobs": 2}),
    "ids": (COMPLETIONS, {**LONG, "prompt": PROMPT, "return_token_ids": True}),
    "chat": (CHAT, {**LONG, "messages": [{"role": "user", "content": PROMPT}], "logprobs": True}),
}


@dataclass
class Fleet:
    router: Routed
    prefill: EngineServer
    decodes: list[EngineServer]

    def decoding(self) -> EngineServer:
        """The server that decodes the only request there is."""
        (record,) = self.router.journal.live.values()
        return next(server for server in self.decodes if server.url == record.attempts[-1].decode)


@pytest.fixture(params=["push", "pull"], scope="module")
def fleet(request: pytest.FixtureRequest, text_model: Path) -> Iterator[Fleet]:
    mode = request.param
    names = ("prefill", "decode", "decode")
    with servers(*((text_model, role(name, "--no-enable-prefix-caching")) for name in names)) as started:
        specs = [WorkerSpec(url=server.url) for server in started]
        with routed(real_fleet(specs), RouterConfig(port=0, mode=Mode(mode))) as router:
            yield Fleet(router, started[0], started[1:])


def killed(fleet: Fleet, path: str, body: dict[str, Any], kill: Any) -> Streamed:
    """A streamed answer whose decode server is killed after its tenth piece."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with fleet.router.http.stream("POST", path, json=asked) as answer:
        assert answer.status_code == 200
        raw, victim = b"", None
        for count, piece in enumerate(answer.iter_raw()):
            raw += piece
            if count == 10:
                victim = fleet.decoding()
                kill(victim)
    assert victim is not None
    events = events_of(raw)
    assert not any("error" in event for event in events), events[-1]
    return Streamed([comparable(event) for event in events])


def kill_engine(server: EngineServer) -> None:
    os.kill(server.engine(), signal.SIGKILL)


@pytest.mark.parametrize("name", [name for name in BODIES if name != "text"])  # a server restarts three times
def test_the_engine_dies(fleet: Fleet, name: str) -> None:
    path, body = BODIES[name]
    expected = streamed(fleet.decodes[0].http, path, body)
    ids = {server.url: server.peer["engine_id"] for server in fleet.decodes}
    found = killed(fleet, path, body, kill_engine)
    assert found.choices() == expected.choices() and found.usage == expected.usage
    first, second = fleet.router.last.attempts
    assert second.outcome == "done" and second.continues > 5 and first.decode != second.decode
    victim = next(server for server in fleet.decodes if server.url == first.decode)
    victim.back(ids[victim.url])
    until(lambda: len(fleet.router.fleet.ready()) == 3)
    for server in (fleet.prefill, *fleet.decodes):
        server.idle()


def test_the_whole_server_dies(fleet: Fleet) -> None:
    """The last test of its fleet: nobody starts that server again."""
    path, body = BODIES["text"]
    expected = streamed(fleet.decodes[0].http, path, body)
    found = killed(fleet, path, body, lambda server: server.process.kill())
    assert found.choices() == expected.choices()
    assert [attempt.outcome for attempt in fleet.router.last.attempts][1:] == ["done"]
    until(lambda: len(fleet.router.fleet.ready()) == 2)
    assert json.loads(fleet.router.http.post(path, json=body).content)["choices"]
