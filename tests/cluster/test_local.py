"""An engine process under supervision: started, lost, started again, stopped; no process and no file stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from baton.cluster.launch import EngineLaunch, model_launch
from baton.cluster.local import LocalEngine, describe_exit
from baton.core.errors import EngineDeadError, UserError
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.engine.options import EngineOptions
from baton.engine.stub_runner import StubRunner
from baton.server.engine_client import EngineState
from tests.cluster.serving import alive

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


def local(**options: Any) -> LocalEngine:
    return LocalEngine(EngineLaunch(module="baton.engine.stub_process", options=json.dumps(options)))


def request(request_id: str, max_tokens: int) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(1,), params=SamplingParams(max_tokens=max_tokens, seed=1))


async def complete(engine: LocalEngine, request_id: str, max_tokens: int = 5) -> list[int]:
    stream = engine.client.submit(request(request_id, max_tokens))
    return [token async for delta in stream for token in delta.token_ids]


def test_it_serves_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def body() -> None:
        engine = local()
        await engine.start()
        pid = engine.pid
        assert pid is not None and alive(pid)
        assert list(tmp_path.iterdir()) == []  # the socket has no name any more
        assert await complete(engine, "a") == StubRunner(16, 256).continuation(request("a", 5), 0, 5)
        start = time.monotonic()
        await engine.stop()
        assert time.monotonic() - start < 1.5
        assert not alive(pid) and engine.pid is None

    asyncio.run(body())


def test_a_killed_engine_fails_its_streams_and_can_be_started_again() -> None:
    async def body() -> None:
        engine = local(step_s=0.01)
        await engine.start()
        stream = engine.client.submit(request("a", 3000))
        await anext(stream)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="killed by signal SIGKILL"):
            async for _ in stream:
                pass
        await asyncio.wait_for(engine.ended.wait(), 5)
        assert engine.client.state is EngineState.DEAD and engine.pid is None
        await engine.start()
        assert len(await complete(engine, "b")) == 5
        await engine.stop()

    asyncio.run(body())


def test_an_engine_that_fails_says_why() -> None:
    async def body() -> None:
        engine = local(poison=1)
        await engine.start()
        with pytest.raises(EngineDeadError, match="RuntimeError: poisoned prompt"):
            await complete(engine, "a")
        await asyncio.wait_for(engine.ended.wait(), 5)
        await engine.stop()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"refuse_start": "no such model"}, UserError, "no such model"),
        ({"step_s": "x"}, EngineDeadError, "ValidationError"),
    ],
)
def test_a_start_that_fails(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    async def body() -> None:
        engine = local(**options)
        with pytest.raises(kind, match=message):
            await asyncio.wait_for(engine.start(), 10)
        await engine.stop()
        assert engine.pid is None

    asyncio.run(body())


def test_a_module_that_is_not_there() -> None:
    async def body() -> None:
        engine = LocalEngine(EngineLaunch(module="baton.nothing", options="{}"))
        with pytest.raises(EngineDeadError, match="exit code 1"):
            await asyncio.wait_for(engine.start(), 10)
        await engine.stop()

    asyncio.run(body())


def test_an_engine_that_still_loads_is_stopped_at_once() -> None:
    async def body() -> None:
        engine = local(start_s=60.0)
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(0.3)
        pid = engine.pid
        assert pid is not None
        start = time.monotonic()
        await engine.stop()
        assert time.monotonic() - start < 1.0
        assert not alive(pid)
        with pytest.raises(EngineDeadError):
            await starting

    asyncio.run(body())


def test_exit_statuses_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "killed by signal SIGKILL"
    assert describe_exit(-200) == "killed by signal 200"


def test_the_launch_of_a_model_carries_every_option() -> None:
    launch = model_launch(EngineOptions(model="m", max_model_len=7, enable_prefix_caching=False))
    command = launch.command("ipc:///x", 42)
    assert command[:3] == [sys.executable, "-m", "baton.engine.process"]
    assert command[3:7] == ["--channel", "ipc:///x", "--parent", "42"]
    options = json.loads(command[command.index("--options") + 1])
    assert EngineOptions(**options["engine"]) == EngineOptions(model="m", max_model_len=7, enable_prefix_caching=False)
