"""NixlAgent between two processes, one of which is stopped and killed at bad moments; the contract is tested apart."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.core.errors import ConfigError
from baton.transfer.agent import AgentError, Direction, Moves, Post
from baton.transfer.nixl_agent import NixlAgent
from tests.chaos.processes import Process
from tests.transfer.agents import Buffer, PeerProcess, Watch, moves

SIZE = 1 << 22
DEATH_S = 10.0
"""Within which a post to a killed peer must end: seen are 50 ms; the rest is for busy machines."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="pidfd")


def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def buffer() -> Buffer:
    return Buffer(SIZE, 1)


@pytest.fixture(scope="module")
def agent(buffer: Buffer) -> Iterator[NixlAgent]:
    one = NixlAgent("here-" + name())
    one.register(buffer.address, SIZE, None)
    yield one
    one.close()


@pytest.fixture
def here(agent: NixlAgent, buffer: Buffer) -> Watch:
    buffer.bytes[:] = 1
    return Watch(agent)


@pytest.fixture(scope="module")
def neighbour() -> Iterator[PeerProcess]:
    one = PeerProcess("there-" + name(), SIZE)
    yield one
    one.kill()


@pytest.fixture
def peer(neighbour: PeerProcess) -> PeerProcess:
    """Lives through the module; its buffer is zero."""
    neighbour.ask("fill", 0)
    neighbour.reports.clear()
    return neighbour


@pytest.fixture
def victim() -> Iterator[PeerProcess]:
    one = PeerProcess("victim-" + name(), SIZE)
    yield one
    one.kill()


def scattered(source: int, destination: int, count: int = 500, length: int = 1024) -> Moves:
    """Moves that touch on neither side, in an order of their own."""
    order = np.random.default_rng(0).permutation(count)
    rows = np.empty((count, 3), np.int64)
    rows[:, 0] = source + 2 * length * np.arange(count)
    rows[:, 1] = destination + 2 * length * order
    rows[:, 2] = length
    return rows


def test_a_write_is_complete_when_its_notice_comes(here: Watch, peer: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(peer.metadata)
    rows = scattered(buffer.address, peer.address)
    buffer.bytes[:] = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    expected = np.zeros(SIZE, np.uint8)
    for source, destination, length in rows - [buffer.address, peer.address, 0]:
        expected[destination : destination + length] = buffer.bytes[source : source + length]
    for _ in range(3):
        assert here.end_of(here.agent.post(Direction.WRITE, there, rows, b"done")).error is None
        _, _, payload, total = peer.next("notice")
        assert (payload, total) == (b"done", int(expected.sum(dtype=np.int64)))
    assert peer.ask("look", 0, SIZE) == expected.tobytes()


def test_a_read_fetches_and_tells_the_owner(here: Watch, peer: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(peer.metadata)
    peer.ask("fill", 5)
    rows = scattered(peer.address, buffer.address)
    assert here.end_of(here.agent.post(Direction.READ, there, rows, b"read")).error is None
    assert np.count_nonzero(buffer.bytes == 5) == 500 * 1024
    assert peer.next("notice")[2] == b"read"


def test_both_sides_post_and_notify(here: Watch, peer: PeerProcess, agent: NixlAgent, buffer: Buffer) -> None:
    there = agent.connect(peer.metadata)
    my_name = peer.ask("connect", agent.metadata())
    rows = moves((peer.address, buffer.address, 4096))
    post = peer.ask("post", Direction.WRITE, my_name, rows, b"from there")
    here.until(lambda: here.notices)
    assert [(notice.peer, notice.payload) for notice in here.notices] == [(there, b"from there")]
    assert np.count_nonzero(buffer.bytes == 0) == 4096
    assert peer.next("ended")[1:] == (post, None)
    agent.notify(there, b"hello")
    assert peer.next("notice")[1:3] == (my_name, b"hello")


@pytest.mark.parametrize("used", [True, False], ids=["used connection", "fresh connection"])
def test_killed_before_posting(here: Watch, victim: PeerProcess, buffer: Buffer, used: bool) -> None:
    there = here.agent.connect(victim.metadata)
    rows = scattered(buffer.address, victim.address)
    if used:
        here.end_of(here.agent.post(Direction.WRITE, there, rows))
    victim.kill()
    assert here.end_of(here.agent.post(Direction.WRITE, there, rows, b"n"), DEATH_S).error is not None
    with pytest.raises(AgentError):
        here.agent.post(Direction.READ, there, rows[:, [1, 0, 2]])
    with pytest.raises(AgentError):
        here.agent.notify(there, b"n")
    here.agent.disconnect(there)
    assert not leftovers(here.agent)


def test_killed_while_posts_are_in_flight_then_restarted(here: Watch, victim: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(victim.metadata)
    rows = scattered(buffer.address, victim.address)
    here.end_of(here.agent.post(Direction.WRITE, there, rows))
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGSTOP)
    posts = here.stall(lambda: here.agent.post(Direction.WRITE, there, rows, b"n"))
    victim.kill()
    assert here.end_of(posts[-1], DEATH_S).error is not None
    for _ in range(100):
        here.poll()
    assert sorted(ended.post for ended in here.ended)[1:] == posts, "each ends once"
    again = PeerProcess("again-" + name(), SIZE)
    there = here.agent.connect(again.metadata)
    rows = scattered(buffer.address, again.address)
    assert here.end_of(here.agent.post(Direction.WRITE, there, rows, b"n")).error is None
    assert again.next("notice")[2:] == (b"n", 500 * 1024)
    again.kill()


def test_a_name_whose_owner_could_not_be_reached_can_be_used_again(here: Watch, buffer: Buffer) -> None:
    """Connecting anew to the dead fails, and leaves nothing behind in NIXL that would be in the way of a successor."""
    first = PeerProcess("twice-" + name(), SIZE)
    there = here.agent.connect(first.metadata)
    first.kill()
    rows = moves((buffer.address, first.address, 8))
    assert here.end_of(here.agent.post(Direction.WRITE, there, rows), DEATH_S).error is not None
    with pytest.raises(AgentError):
        here.agent.post(Direction.WRITE, there, rows)
    here.agent.disconnect(there)
    second = PeerProcess(there, SIZE)
    assert here.agent.connect(second.metadata) == there
    rows = moves((buffer.address, second.address, 8))
    assert here.end_of(here.agent.post(Direction.WRITE, there, rows, b"n")).error is None
    assert second.next("notice")[2:] == (b"n", 8)
    second.kill()


@dataclass(frozen=True)
class Linked:
    """Two agents that know each other, and have used the connection. rows: a WRITE from here."""

    here: Watch
    peer: PeerProcess
    there: str
    rows: Moves

    def read(self) -> Post:
        return self.here.agent.post(Direction.READ, self.there, self.rows[:, [1, 0, 2]])

    def write(self) -> Post:
        return self.here.agent.post(Direction.WRITE, self.there, self.rows, b"n")

    def check_all(self, my_name: str) -> None:
        """Bytes and notices go both ways."""
        self.peer.ask("fill", 0)
        self.peer.reports.clear()
        assert self.here.end_of(self.write()).error is None
        assert self.peer.next("notice")[2:] == (b"n", int(self.rows[:, 2].sum()))
        assert self.here.end_of(self.read()).error is None
        self.here.agent.notify(self.there, b"hello")
        assert self.peer.next("notice")[2] == b"hello"
        assert self.post_back(my_name, b"back") is None
        self.here.until(lambda: [notice.payload for notice in self.here.notices] == [b"back"])

    def post_back(self, my_name: str, notice: bytes) -> str | None:
        """The peer WRITEs here: its error."""
        rows = moves((self.rows[0, 1], self.rows[0, 0], 8))
        post = self.peer.ask("post", Direction.WRITE, my_name, rows, notice)
        self.here.until(self.peer.has_ended)
        _, ended, error = self.peer.next("ended")
        assert ended == post
        return error


@pytest.fixture
def linked(here: Watch, peer: PeerProcess, buffer: Buffer) -> Linked:
    there = here.agent.connect(peer.metadata)
    found = Linked(here, peer, there, moves((buffer.address, peer.address, SIZE // 2)))
    here.end_of(found.write())
    peer.next("notice")
    return found


def reset(pid: int | None) -> None:
    """End all TCP connections of a process: both ends see a RST."""
    assert pid is not None
    with Process(pid) as process:
        assert process.reset(lambda ports: True)


@linux
@pytest.mark.parametrize("used", ["write", "read", "notify"])
@pytest.mark.parametrize("end", ["here", "there"])
def test_a_connection_that_was_reset_is_made_anew(linked: Linked, agent: NixlAgent, end: str, used: str) -> None:
    """What meets the reset fails; what comes next does not, and the peer has nothing to do for it."""
    here, peer, there = linked.here, linked.peer, linked.there
    my_name = peer.ask("connect", agent.metadata())
    reset(os.getpid() if end == "here" else peer.pid)
    if used == "notify":
        with pytest.raises(AgentError):
            agent.notify(there, b"lost")
    else:
        assert here.end_of(linked.write() if used == "write" else linked.read()).error is not None
    assert here.end_of(linked.write()).error is None
    linked.post_back(my_name, b"may be lost: the peer has not used its own connection yet")
    here.notices.clear()
    linked.check_all(my_name)
    assert not leftovers(agent)


@linux
def test_a_connection_is_not_made_anew_under_a_post_in_flight(linked: Linked) -> None:
    """NIXL tells nothing of a transfer any more once its peer was removed."""
    here, peer = linked.here, linked.peer
    assert peer.pid is not None
    os.kill(peer.pid, signal.SIGSTOP)
    try:
        posts = here.stall(linked.write)
        reset(peer.pid)
        here.until(lambda: any(ended.error for ended in here.ended))
    finally:
        os.kill(peer.pid, signal.SIGCONT)
    assert [ended.post for ended in here.ended][1:] == posts, "each ends once"
    assert here.end_of(linked.write()).error is None
    assert not leftovers(here.agent)


def test_disconnecting_waits_for_posts_in_flight(here: Watch, peer: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(peer.metadata)
    rows = scattered(buffer.address, peer.address)
    here.end_of(here.agent.post(Direction.WRITE, there, rows))
    assert peer.pid is not None
    os.kill(peer.pid, signal.SIGSTOP)
    posts = here.stall(lambda: here.agent.post(Direction.WRITE, there, rows, b"late"))
    here.agent.disconnect(there)
    with pytest.raises(AgentError, match="not connected"):
        here.agent.post(Direction.WRITE, there, rows)
    for _ in range(200):
        here.poll()
    assert posts[-1] not in {ended.post for ended in here.ended}
    os.kill(peer.pid, signal.SIGCONT)
    assert here.end_of(posts[-1]).error is None
    notices = iter(lambda: peer.next("notice")[2:], None)  # those of a post that a test before broke may still come
    late = itertools.islice((notice for notice in notices if notice[0] == b"late"), len(posts))
    assert list(late) == [(b"late", 500 * 1024)] * len(posts)
    assert here.agent.connect(peer.metadata) == there
    assert here.end_of(here.agent.post(Direction.WRITE, there, rows)).error is None


def test_connecting_again_while_disconnecting(here: Watch, peer: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(peer.metadata)
    rows = scattered(buffer.address, peer.address)
    assert peer.pid is not None
    os.kill(peer.pid, signal.SIGSTOP)
    first = here.stall(lambda: here.agent.post(Direction.WRITE, there, rows, b"n"))[-1]
    here.agent.disconnect(there)
    assert here.agent.connect(peer.metadata) == there
    second = here.agent.post(Direction.WRITE, there, rows)
    os.kill(peer.pid, signal.SIGCONT)
    assert here.end_of(first).error is here.end_of(second).error is None


def test_a_handle_that_cannot_be_released_is_tried_again(
    here: Watch, agent: NixlAgent, peer: PeerProcess, buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = agent.connect(peer.metadata)
    release, refused = agent._nixl.release_xfer_handle, []

    def refuse(handle: Any) -> None:
        if len(refused) < 3:
            refused.append(handle)
            raise RuntimeError("active")
        release(handle)

    monkeypatch.setattr(agent._nixl, "release_xfer_handle", refuse)
    post = agent.post(Direction.WRITE, there, moves((buffer.address, peer.address, 8)))
    assert here.end_of(post).error is None, "the bytes are there, whatever becomes of the handle"
    here.until(lambda: not leftovers(agent))
    assert len(refused) == 3
    assert [ended.post for ended in here.ended] == [post]


def test_a_thousand_transfers_leave_nothing_behind(here: Watch, peer: PeerProcess, buffer: Buffer) -> None:
    there = here.agent.connect(peer.metadata)
    rows = scattered(buffer.address, peer.address, count=64, length=256)

    def run(count: int) -> int:
        for _ in range(count):
            assert here.end_of(here.agent.post(Direction.WRITE, there, rows, b"n")).error is None
            here.ended.clear()
            peer.next("notice")
        assert not leftovers(here.agent)
        return resident_bytes()

    before = run(300)
    assert run(1000) - before < 2 << 20, "a kept handle of 64 descriptors would be over 2 KiB"


def leftovers(agent: Any) -> list[Any]:
    """Handles that the agent still has."""
    return [*agent._flights, *agent._unreleased]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_closing_with_posts_in_flight_does_not_hold_up_the_process(peer: PeerProcess) -> None:
    program = (
        "import os, pickle, signal, sys\n"
        "from baton.transfer.agent import Direction\n"
        "from baton.transfer.nixl_agent import NixlAgent\n"
        "from tests.transfer.agents import Buffer, Watch, moves\n"
        "metadata, address, pid, size = pickle.load(sys.stdin.buffer)\n"
        "agent, buffer = NixlAgent('leaver'), Buffer(size)\n"
        "agent.register(buffer.address, size, None)\n"
        "there, rows = agent.connect(metadata), moves((buffer.address, address, size))\n"
        "Watch(agent).end_of(agent.post(Direction.WRITE, there, rows))\n"
        "os.kill(pid, signal.SIGSTOP)\n"
        "Watch(agent).stall(lambda: agent.post(Direction.WRITE, there, rows, b'n'))\n"
        "assert agent._flights\n"
        "agent.close()\n"
    )
    arguments = pickle.dumps((peer.metadata, peer.address, peer.pid, SIZE))
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", program], input=arguments, capture_output=True, cwd=root, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_without_nixl_one_is_told_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['nixl'] = None\n"
        "from baton.core.errors import ConfigError\n"
        "from baton.transfer.nixl_agent import NixlAgent\n"
        "try: NixlAgent('x')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install 'baton[nixl]'" in done.stdout, done.stderr


def test_an_unknown_back_end_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no back end TELEPATHY; it has .*UCX"):
        NixlAgent(name(), backends=("TELEPATHY",))
