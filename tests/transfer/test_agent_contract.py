"""What `baton.transfer.agent.Agent` promises, of both kinds: two agents of one process, each with a buffer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

from baton.transfer.agent import Agent, AgentError, Direction, Notice
from baton.transfer.memory_agent import MemoryAgent, MemoryNetwork
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.regions import AgentCard, pack_card
from tests.transfer.agents import Buffer, Watch, moves

SIZE = 4096


@dataclass
class Two:
    """A connected pair: agents, buffers (a's ones, b's zeros), names as `connect` returned them."""

    kind: str
    a: Watch
    b: Watch
    here: Buffer
    there: Buffer
    name_a: str
    name_b: str


@pytest.fixture(scope="module", params=["memory", "nixl"])
def pair(request: pytest.FixtureRequest) -> Iterator[Two]:
    network = MemoryNetwork(autodeliver=True)
    kinds: dict[str, Callable[[str], Agent]] = {"memory": lambda name: MemoryAgent(network, name), "nixl": NixlAgent}
    make = kinds[request.param]
    agents = [make(f"{side}-{uuid.uuid4().hex}") for side in "ab"]
    here, there = Buffer(SIZE, 1), Buffer(SIZE, 0)
    agents[0].register(here.address, SIZE, None)
    agents[1].register(there.address, SIZE, None)
    name_b, name_a = agents[0].connect(agents[1].metadata()), agents[1].connect(agents[0].metadata())
    yield Two(request.param, Watch(agents[0]), Watch(agents[1]), here, there, name_a, name_b)
    for agent in agents:
        agent.close()


@pytest.fixture
def two(pair: Two) -> Iterator[Two]:
    pair.here.bytes[:], pair.there.bytes[:] = 1, 0
    yield pair
    for watch in (pair.a, pair.b):
        watch.ended.clear()
        watch.notices.clear()


def settle(two: Two, post: Any) -> None:
    """Poll both sides until the post has ended without an error."""

    def reached() -> bool:
        two.b.poll()
        return any(ended.post == post for ended in two.a.ended)

    two.a.until(reached)
    assert [ended.error for ended in two.a.ended if ended.post == post] == [None]


def test_write_moves_just_its_bytes_and_then_says_so(two: Two) -> None:
    rows = moves((two.here.address + 8, two.there.address + 100, 16), (two.here.address, two.there.address + 300, 4))
    post = two.a.agent.post(Direction.WRITE, two.name_b, rows, b"done")
    settle(two, post)
    two.b.until(lambda: two.b.notices)
    assert two.b.notices == [Notice(peer=two.name_a, payload=b"done")]
    expected = np.zeros(SIZE, np.uint8)
    expected[100:116], expected[300:304] = 1, 1
    assert (two.there.bytes == expected).all()


def test_read_fetches_and_tells_the_owner(two: Two) -> None:
    two.there.bytes[:] = 7
    rows = moves((two.there.address + 64, two.here.address, 32))
    post = two.a.agent.post(Direction.READ, two.name_b, rows, b"read")
    settle(two, post)
    two.b.until(lambda: two.b.notices)
    assert two.b.notices == [Notice(peer=two.name_a, payload=b"read")]
    assert two.here.bytes[:33].tolist() == [7] * 32 + [1]


def test_no_notice_without_one(two: Two) -> None:
    settle(two, two.a.agent.post(Direction.WRITE, two.name_b, moves((two.here.address, two.there.address, 8))))
    two.a.agent.notify(two.name_b, b"later")
    two.b.until(lambda: two.b.notices)
    assert two.b.notices == [Notice(peer=two.name_a, payload=b"later")]


def test_notify_keeps_every_byte(two: Two) -> None:
    payload = bytes(range(256)) * 40
    two.b.agent.notify(two.name_a, payload)

    def reached() -> bool:
        two.b.poll()
        return bool(two.a.notices)

    two.a.until(reached)
    assert two.a.notices == [Notice(peer=two.name_b, payload=payload)]


def test_posts_have_different_names(two: Two) -> None:
    rows = moves((two.here.address, two.there.address, 8))
    posts = [two.a.agent.post(Direction.WRITE, two.name_b, rows) for _ in range(3)]
    for post in posts:
        settle(two, post)
    assert len(set(posts)) == 3
    assert sorted(ended.post for ended in two.a.ended) == sorted(posts)


def test_connecting_twice_has_no_effect(two: Two) -> None:
    assert two.a.agent.connect(two.b.agent.metadata()) == two.name_b
    settle(two, two.a.agent.post(Direction.WRITE, two.name_b, moves((two.here.address, two.there.address, 8))))


def test_disconnect_and_connect_again(two: Two) -> None:
    rows = moves((two.here.address, two.there.address, 8))
    two.a.agent.disconnect(two.name_b)
    two.a.agent.disconnect("nobody")
    with pytest.raises(AgentError, match="not connected"):
        two.a.agent.post(Direction.WRITE, two.name_b, rows)
    with pytest.raises(AgentError, match="not connected"):
        two.a.agent.notify(two.name_b, b"x")
    assert two.a.agent.connect(two.b.agent.metadata()) == two.name_b
    settle(two, two.a.agent.post(Direction.WRITE, two.name_b, rows))


@pytest.mark.parametrize(
    ("here", "there", "length"),
    [(-8, 0, 16), (SIZE - 8, 0, 16), (0, SIZE - 8, 16), (0, -8, 4), (0, 0, 0), (0, 0, -4), (0, 0, 2**62)],
)
def test_memory_outside_of_registered_memory_is_refused(two: Two, here: int, there: int, length: int) -> None:
    good = (two.here.address, two.there.address, 8)
    bad = (two.here.address + here, two.there.address + there, length)
    with pytest.raises(AgentError, match="not inside registered memory"):
        two.a.agent.post(Direction.WRITE, two.name_b, moves(good, bad))
    assert not two.there.bytes.any()


def test_metadata_of_something_else_is_refused(two: Two) -> None:
    metadata = two.b.agent.metadata()
    damaged = bytearray(metadata)
    damaged[len(metadata) // 2] ^= 1
    for bad in (b"", b"garbage" * 20, metadata[:-1], metadata[:40], bytes(damaged)):
        with pytest.raises(AgentError, match="not an agent's metadata"):
            two.a.agent.connect(bad)
    other = pack_card(AgentCard(kind="telepathy", name="x", regions=()))
    with pytest.raises(AgentError, match=f"kind 'telepathy', this one of kind '{two.kind}'"):
        two.a.agent.connect(other)


def test_another_agent_of_a_connected_name_is_refused(two: Two) -> None:
    metadata = two.b.agent.metadata()
    card = msgspec.msgpack.decode(metadata[16:], type=AgentCard)
    impostor = pack_card(msgspec.structs.replace(card, regions=()))
    with pytest.raises(AgentError, match="disconnect it first"):
        two.a.agent.connect(impostor)


def test_memory_is_registered_once(two: Two) -> None:
    with pytest.raises(AgentError, match="registered already"):
        two.a.agent.register(two.here.address + 8, 8, None)
    with pytest.raises(AgentError, match="must not be empty"):
        two.a.agent.register(two.here.address + SIZE, 0, None)
