"""One process of a fleet: real processes that serve, die, hang and will not start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.cluster.fleet_member import Member, delay_s
from baton.cluster.fleet_plan import MemberKind, MemberPlan
from tests.cluster.serving import alive, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups and death signals")

# Listens like a server; argv: ..., "--port", PORT.
SERVES = """
import signal, socket, sys, time
{before}
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[-1]))); s.listen()
print("a line of its own", flush=True)
print(f"Baton is ready at http://127.0.0.1:{{s.getsockname()[1]}}", flush=True)
time.sleep(60)
"""


def plan(program: str) -> MemberPlan:
    return MemberPlan(name="decode-0", kind=MemberKind.DECODE, command=(sys.executable, "-c", program))


@asynccontextmanager
async def started(tmp_path: Path, program: str, max_restarts: int = 5) -> AsyncIterator[Member]:
    member = Member(plan(program), tmp_path, os.environ, max_restarts)
    member.start()
    try:
        yield member
    finally:
        await member.stop(0)


async def within(seconds: float, found: Callable[[], object]) -> None:
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.01)


def test_delays_double_up_to_five_seconds() -> None:
    assert [delay_s(deaths) for deaths in (0, 1, 2, 5, 100)] == [0.2, 0.4, 0.8, 5.0, 5.0]


def test_it_comes_back_on_the_same_port(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path, SERVES.format(before="")) as member:
            await asyncio.wait_for(member.ready.wait(), 5)
            url, pid = member.url, member.pid
            assert pid is not None and url.startswith("http://127.0.0.1:")
            os.kill(pid, signal.SIGKILL)
            await within(5, lambda: member.ready.is_set() and member.pid not in (None, pid))
            assert member.url == url
            assert os.getpgid(member.pid or 0) != os.getpgid(0)  # Ctrl-C in a terminal does not reach it
            await member.stop(5)
            assert member.ended.is_set() and member.pid is None and member.failure == ""
        log = (tmp_path / "decode-0.log").read_text()
        assert log.count("a line of its own") == 2  # the log goes on

    asyncio.run(body())


def test_one_that_never_served_is_not_started_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(
            tmp_path, "import sys; print('baton: no such model', file=sys.stderr); sys.exit(2)"
        ) as member:
            await asyncio.wait_for(member.ended.wait(), 5)
            assert (member.exit_code, member.failure) == (2, "exit code 2")
            assert member.last_words() == "baton: no such model"

    asyncio.run(body())


def test_restarts_have_a_budget(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path, SERVES.format(before="").replace("sleep(60)", "sleep(0.05)"), 2) as member:
            await asyncio.wait_for(member.ended.wait(), 10)
            assert "too often" in member.failure
        assert (tmp_path / "decode-0.log").read_text().count("Baton is ready") == 3  # the first and two more

    asyncio.run(body())


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path, SERVES.format(before="signal.signal(15, signal.SIG_IGN)")) as member:
            await asyncio.wait_for(member.ready.wait(), 5)
            await member.stop(0.2)
            assert member.exit_code == -signal.SIGKILL

    asyncio.run(body())


def test_stopping_ends_a_pause_between_restarts(tmp_path: Path) -> None:
    async def body() -> None:
        async with started(tmp_path, SERVES.format(before="").replace("sleep(60)", "sleep(0.01)"), 1000) as member:
            await within(10, lambda: member.url and member.pid is None)
            async with asyncio.timeout(3):
                await member.stop(60)
            assert member.pid is None and member.failure == ""

    asyncio.run(body())


def test_it_dies_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    parent = f"""
import asyncio, os, sys
from pathlib import Path
from baton.cluster.fleet_member import Member
from tests.cluster.test_fleet_member import SERVES, plan
async def body():
    stubborn = plan(SERVES.format(before="signal.signal(15, signal.SIG_IGN)"))
    member = Member(stubborn, Path({str(tmp_path)!r}), os.environ, 5)
    member.start()
    await member.ready.wait()
    print(member.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(body())
"""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        until(lambda: not alive(pid), 3)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
