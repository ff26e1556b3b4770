"""The engine process, driven over its socket: real processes and signals, the stand-in engine in place of a model.

The right tokens are those of StubRunner.continuation, which knows no steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import RequestError
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.engine.process import EngineLoop, ServedEngine
from baton.engine.stub_process import StubOptions, build_stub
from baton.engine.stub_runner import StubRunner
from baton.wire.channel import EngineSocket, FrontSocket
from baton.wire.engine import Cancel, Failed, FromEngine, Output, Ready, Refused, Stop, Submit

pytestmark = pytest.mark.slow

GRAMMAR = Grammar(kind=GrammarKind.JSON_OBJECT)


def request(request_id: str, max_tokens: int = 5, prompt: tuple[int, ...] = (1, 2, 3), **params: Any) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=max_tokens, seed=7, **params),
    )


class Peer:
    """A front that only records."""

    def __init__(self) -> None:
        self.received: list[FromEngine] = []
        self.front = FrontSocket(self.received.append)

    async def until(self, found: Callable[[], bool], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not found():
            assert time.monotonic() < deadline, f"waited in vain; got {self.received[-3:]}"
            await asyncio.sleep(0.005)

    def deltas(self, request_id: str) -> list[SequenceDelta]:
        outputs = [m for m in self.received if isinstance(m, Output)]
        return [d for output in outputs for d in output.deltas if d.request_id == request_id]

    def ended(self, request_id: str) -> bool:
        return any(d.finish_reason is not None for d in self.deltas(request_id))

    def last(self) -> Output:
        output = self.received[-1]
        assert isinstance(output, Output)
        return output


class Process(Peer):
    """The same with the process behind it."""

    def __init__(self, module: str = "baton.engine.stub_process", **options: Any) -> None:
        super().__init__()
        flags = ["--channel", self.front.address, "--parent", str(os.getpid()), "--options", json.dumps(options)]
        self.process = subprocess.Popen([sys.executable, "-m", module, *flags], stderr=subprocess.PIPE, text=True)

    async def exit(self, timeout_s: float = 10.0) -> int:
        return await asyncio.to_thread(self.process.wait, timeout_s)

    async def __aenter__(self) -> Process:
        await self.until(lambda: bool(self.received))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.front.close()


def with_process(test: Callable[[Process], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with Process(**options) as process:
            await test(process)

    asyncio.run(body())


def test_ready_then_one_output_a_step() -> None:
    async def body(engine: Process) -> None:
        ready = engine.received[0]
        assert isinstance(ready, Ready) and ready.info.vocab_size == 256
        sent_s = time.time()
        engine.front.send(Submit(request=request("a", 5)))
        await engine.until(lambda: engine.ended("a"))
        tokens = [t for d in engine.deltas("a") for t in d.token_ids]
        assert tokens == StubRunner(16, 256).continuation(request("a"), 0, 5)
        assert engine.deltas("a")[-1].finish_reason is FinishReason.LENGTH
        outputs = [m for m in engine.received if isinstance(m, Output)]
        # The prompt's three tokens, then each of the first four outputs; planned ahead, so the last may run as well.
        ran = [o.num_tokens for o in outputs if o.num_tokens]
        assert ran[:5] == [3, 1, 1, 1, 1] and len(ran) <= 6
        (admitted,) = [a for o in outputs for a in o.admitted]
        assert admitted.request_id == "a"
        assert sent_s - 0.1 <= admitted.time_s <= outputs[-1].time_s <= time.time() + 0.1

    with_process(body)


def test_a_request_that_cannot_run_is_refused_and_others_go_on() -> None:
    async def body(engine: Process) -> None:
        engine.front.send(Submit(request=request("long", prompt=(1,) * 99)))
        engine.front.send(Submit(request=request("vocab", prompt=(999,))))
        engine.front.send(Submit(request=request("good", 4000, prompt=(1,))))
        engine.front.send(Submit(request=request("good", 3)))
        await engine.until(lambda: engine.ended("good"))
        refused = {m.request_id: m for m in engine.received if isinstance(m, Refused)}
        assert set(refused) == {"long", "vocab", "good"}  # "good": its id is in use
        assert refused["long"].param == "prompt" and "99 tokens" in refused["long"].message
        assert refused["good"].param == "request_id"
        assert len(engine.deltas("good")) == 19  # max_model_len 20 less the prompt

    with_process(body, max_model_len=20, step_s=0.01)


def test_cancel_ends_a_request_and_the_figures_show_it() -> None:
    async def body(engine: Process) -> None:
        engine.front.send(Submit(request=request("a", 3000, n=2)))
        await engine.until(lambda: len(engine.deltas("a")) > 4)
        engine.front.send(Cancel(request_id="a", index=0))
        engine.front.send(Submit(request=request("probe", 1)))
        await engine.until(lambda: engine.ended("probe"))
        count = len(engine.deltas("a"))
        await engine.until(lambda: len(engine.deltas("a")) > count + 5)
        assert {d.index for d in engine.deltas("a")[count:]} == {1}
        engine.front.send(Cancel(request_id="a"))
        engine.front.send(Cancel(request_id="a"))
        engine.front.send(Cancel(request_id="unknown"))
        await engine.until(lambda: engine.last().stats.num_running == 0)
        assert engine.last().stats.used_blocks == 0
        count = len(engine.received)
        await asyncio.sleep(0.3)
        assert len(engine.received) == count  # an idle engine is silent

    with_process(body, step_s=0.005)


def test_an_error_in_a_step_is_the_last_word() -> None:
    async def body(engine: Process) -> None:
        engine.front.send(Submit(request=request("bad", prompt=(66, 1))))
        await engine.until(lambda: isinstance(engine.received[-1], Failed))
        assert engine.received[-1] == Failed(message="RuntimeError: poisoned prompt")
        assert await engine.exit() == 1
        assert engine.process.stderr is not None
        log = engine.process.stderr.read()
        assert "Traceback" in log and "poisoned prompt" in log

    with_process(body, poison=66)


def test_a_start_that_the_user_can_mend() -> None:
    async def body(engine: Process) -> None:
        assert engine.received == [Failed(message="no such model", user_error=True)]
        assert await engine.exit() == 2
        assert engine.process.stderr is not None
        assert "Traceback" not in engine.process.stderr.read()

    with_process(body, refuse_start="no such model")


@pytest.mark.torch
def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    async def body() -> None:
        async with Process("baton.engine.process", engine={"model": str(tmp_path / "none")}) as engine:
            (failed,) = engine.received
            assert isinstance(failed, Failed) and failed.user_error and "\n" not in failed.message
            assert str(tmp_path / "none") in failed.message
            assert await engine.exit() == 2

    asyncio.run(body())


def test_stop_ends_at_once_even_inside_a_long_step() -> None:
    async def body(engine: Process) -> None:
        engine.front.send(Submit(request=request("a")))
        await asyncio.sleep(0.2)
        engine.front.send(Stop())
        assert await engine.exit(3.0) == 0

    with_process(body, step_s=1.0)


def test_sigint_is_ignored_and_sigterm_ends() -> None:
    async def body(engine: Process) -> None:
        engine.process.send_signal(signal.SIGINT)
        engine.front.send(Submit(request=request("a")))
        await engine.until(lambda: engine.ended("a"))
        engine.process.send_signal(signal.SIGTERM)
        assert await engine.exit(2.0) == -signal.SIGTERM

    with_process(body)


_PARENT = """
import asyncio, json, os, subprocess, sys, time
from baton.wire.channel import FrontSocket
async def main():
    front = FrontSocket(lambda message: print(child.pid, flush=True))
    flags = ["--channel", front.address, "--parent", str(os.getpid()), "--options", sys.argv[1]]
    global child
    child = subprocess.Popen([sys.executable, "-m", "baton.engine.stub_process", *flags])
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # a killed process leaves its files
    command = [sys.executable, "-c", _PARENT, "{}"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        assert _alive(engine)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 2
        while _alive(engine):
            assert time.monotonic() < deadline, "the engine is still there after 2 s"
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class InThread(Peer):
    """The loop in a thread of this process, with a check of the test's own."""

    def __init__(self, check: Callable[[Request], None], parent: int | None = None) -> None:
        super().__init__()
        served = replace(build_stub(StubOptions()), check=check)
        self.socket = EngineSocket(self.front.address)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(served, os.getppid() if parent is None else parent))
        self.socket.send(Ready(info=served.info))
        self.thread.start()

    def _run(self, served: ServedEngine, parent: int) -> None:
        try:
            EngineLoop(served, self.socket, parent).run()
        except BaseException as error:
            self.error = error

    async def __aenter__(self) -> InThread:
        await self.until(lambda: bool(self.received))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.front.send(Stop())
        await asyncio.to_thread(self.thread.join, 5)
        assert not self.thread.is_alive()
        await asyncio.to_thread(self.socket.close)
        self.front.close()


def test_a_slow_grammar_does_not_hold_up_others() -> None:
    compiled = threading.Event()

    def check(request: Request) -> None:
        if request.params.grammar is not None:
            assert compiled.wait(10)
            if request.request_id == "refused":
                raise RequestError("bad schema", param="grammar")

    async def body() -> None:
        async with InThread(check) as engine:
            engine.front.send(Submit(request=request("cancelled", grammar=GRAMMAR)))
            engine.front.send(Submit(request=request("slow", grammar=GRAMMAR, n=2)))
            engine.front.send(Submit(request=request("refused", grammar=GRAMMAR)))
            engine.front.send(Cancel(request_id="cancelled"))
            engine.front.send(Cancel(request_id="slow", index=1))
            engine.front.send(Submit(request=request("plain")))
            await engine.until(lambda: engine.ended("plain"))
            assert not engine.deltas("slow")
            compiled.set()
            await engine.until(lambda: engine.ended("slow") and any(isinstance(m, Refused) for m in engine.received))
            assert {d.index for d in engine.deltas("slow")} == {0}
            refused = [m for m in engine.received if isinstance(m, Refused)]
            assert refused == [Refused(request_id="refused", message="bad schema", param="grammar")]
            assert not engine.deltas("cancelled")

    asyncio.run(body())


def test_an_idle_engine_wakes_when_a_grammar_is_compiled() -> None:
    async def body() -> None:
        async with InThread(lambda request: time.sleep(0.05)) as engine:
            await asyncio.sleep(0.05)
            start = time.monotonic()
            engine.front.send(Submit(request=request("a", grammar=GRAMMAR)))
            await engine.until(lambda: engine.ended("a"))
            assert time.monotonic() - start < 0.3  # less than the idle interval of 0.5 s

    asyncio.run(body())


def test_a_check_that_breaks_ends_the_loop() -> None:
    def check(request: Request) -> None:
        raise ZeroDivisionError("ours")

    async def body(grammar: Grammar | None) -> None:
        async with InThread(check) as engine:
            engine.front.send(Submit(request=request("a", grammar=grammar)))
            await engine.until(lambda: not engine.thread.is_alive())
            assert isinstance(engine.error, ZeroDivisionError)

    asyncio.run(body(None))
    asyncio.run(body(GRAMMAR))


def test_the_loop_ends_when_its_parent_is_another() -> None:
    async def body() -> None:
        async with InThread(lambda request: None, parent=1 if os.getppid() != 1 else 2) as engine:
            await engine.until(lambda: not engine.thread.is_alive(), 2.0)
            assert engine.error is None

    asyncio.run(body())
