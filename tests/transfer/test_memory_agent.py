"""The in-process agents under a schedule: each fault does what its name says, and `touches` tells the truth."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from baton.transfer.agent import AgentError, Direction, Ended, Notice, Post
from baton.transfer.memory_agent import MemoryAgent, MemoryNetwork, PendingNotice, PendingPost
from tests.transfer.agents import Buffer, moves

SIZE = 64


@dataclass
class Net:
    network: MemoryNetwork
    a: MemoryAgent
    b: MemoryAgent
    here: Buffer
    there: Buffer

    def post(self, direction: Direction = Direction.WRITE, notice: bytes | None = None) -> PendingPost:
        """Two moves of 8 bytes: a's [0, 16) and b's [16, 24), [32, 40)."""
        here, there = (self.here.address, self.here.address + 8), (self.there.address + 16, self.there.address + 32)
        pairs = zip(here, there, strict=True) if direction is Direction.WRITE else zip(there, here, strict=True)
        self.a.post(direction, "b", moves(*((source, destination, 8) for source, destination in pairs)), notice)
        item = self.network.pending()[-1]
        assert isinstance(item, PendingPost)
        return item

    def landed(self) -> list[int]:
        """Which of b's bytes are a's."""
        return [i for i in range(SIZE) if self.there.bytes[i] == 1]


FIRST, BOTH = list(range(16, 24)), [*range(16, 24), *range(32, 40)]


@pytest.fixture
def net() -> Net:
    network = MemoryNetwork()
    here, there = Buffer(SIZE, 1), Buffer(SIZE, 2)
    a, b = MemoryAgent(network, "a"), MemoryAgent(network, "b")
    a.register(here.address, SIZE, None)
    b.register(there.address, SIZE, None)
    assert (a.connect(b.metadata()), b.connect(a.metadata())) == ("b", "a")
    return Net(network, a, b, here, there)


def test_nothing_happens_by_itself(net: Net) -> None:
    item = net.post(notice=b"n")
    net.a.notify("b", b"m")
    assert [type(pending) for pending in net.network.pending()] == [PendingPost, PendingNotice]
    assert (net.a.poll(), net.b.poll(), net.landed()) == (([], []), ([], []), [])
    net.network.deliver(item)
    assert net.landed() == BOTH
    assert net.a.poll() == ([Ended(post=Post(1))], [])
    assert net.a.poll() == net.b.poll() == ([], [])


def test_a_notice_is_under_way_once_its_bytes_are_there_and_notices_can_overtake(net: Net) -> None:
    net.network.deliver(net.post(notice=b"first"))
    net.a.notify("b", b"second")
    first, second = net.network.pending()
    net.network.deliver(second)
    net.network.deliver(first)
    assert net.b.poll() == ([], [Notice(peer="a", payload=b"second"), Notice(peer="a", payload=b"first")])


def test_posts_can_overtake(net: Net) -> None:
    first, second = net.post(), net.post()
    net.network.deliver(second)
    net.network.deliver(first)
    assert net.a.poll()[0] == [Ended(post=Post(2)), Ended(post=Post(1))]


def test_notices_twice_and_never(net: Net) -> None:
    net.a.notify("b", b"n")
    (item,) = net.network.pending()
    assert isinstance(item, PendingNotice)
    net.network.duplicate(item)
    net.network.deliver(item)
    assert net.b.poll()[1] == [Notice(peer="a", payload=b"n")] * 2
    net.a.notify("b", b"lost")
    (item,) = net.network.pending()
    assert isinstance(item, PendingNotice)
    net.network.drop(item)
    assert net.b.poll() == ([], [])
    with pytest.raises(ValueError, match="not under way"):
        net.network.deliver(item)


def test_a_post_in_part_then_whole(net: Net) -> None:
    item = net.post()
    net.network.deliver_part(item, [0])
    assert net.landed() == FIRST
    assert net.a.poll() == ([], [])
    net.network.deliver(item)
    assert net.landed() == BOTH


def test_a_failed_post_says_why_and_sends_no_notice(net: Net) -> None:
    item = net.post(notice=b"n")
    net.network.deliver_part(item, [0])
    net.network.fail(item, "cable cut")
    assert net.a.poll() == ([Ended(post=Post(1), error="cable cut")], [])
    assert net.network.pending() == ()
    assert net.landed() == FIRST


def test_read_copies_the_other_way(net: Net) -> None:
    net.network.deliver(net.post(Direction.READ))
    assert net.here.bytes.tolist() == [2] * 16 + [1] * 48
    assert net.landed() == []


def test_posts_to_the_dead_fail_when_delivered(net: Net) -> None:
    before = net.post(notice=b"n")
    net.network.die("b")
    after = net.post()
    for item in (before, after):
        net.network.deliver(item)
    assert net.a.poll()[0] == [Ended(post=Post(1), error="b is dead"), Ended(post=Post(2), error="b is dead")]
    assert net.landed() == []
    for call in (net.b.poll, lambda: net.b.notify("a", b"x"), lambda: net.b.connect(b"")):
        with pytest.raises(AgentError, match="closed or dead"):
            call()


def test_posts_of_the_dead_may_land_late(net: Net) -> None:
    landing, vanishing = net.post(notice=b"n"), net.post()
    net.a.notify("b", b"sent before")
    net.network.die("a")
    assert net.network.orphans() == (landing, vanishing)
    (notice,) = net.network.pending()
    net.network.deliver(notice)
    assert net.b.poll()[1] == [Notice(peer="a", payload=b"sent before")]
    net.network.deliver_part(landing, [0])
    assert net.landed() == FIRST
    net.network.land_late(landing)
    net.network.vanish(vanishing)
    assert net.landed() == BOTH
    assert net.network.orphans() == net.network.pending() == ()
    assert net.b.poll() == ([], [])


def test_a_late_read_of_the_dead_changes_nothing(net: Net) -> None:
    item = net.post(Direction.READ)
    net.network.die("a")
    net.network.land_late(item)
    assert net.here.bytes.tolist() == [1] * SIZE


def test_a_restarted_agent_needs_another_name(net: Net) -> None:
    net.network.die("b")
    with pytest.raises(AgentError, match="another name"):
        MemoryAgent(net.network, "b")
    again = MemoryAgent(net.network, "b2")
    again.register(net.there.address, SIZE, None)
    assert net.a.connect(again.metadata()) == "b2"
    net.a.post(Direction.WRITE, "b2", moves((net.here.address, net.there.address, 8)))
    net.network.deliver(net.network.pending()[0])
    assert net.landed() == list(range(8))


def test_closing_is_dying(net: Net) -> None:
    item = net.post()
    net.a.close()
    net.a.close()
    assert net.network.orphans() == (item,)


def test_disconnect_leaves_posts_under_way(net: Net) -> None:
    item = net.post()
    net.a.disconnect("b")
    net.network.deliver(item)
    assert net.a.poll()[0] == [Ended(post=Post(1))]


@pytest.mark.parametrize("direction", list(Direction))
def test_touches_name_both_sides_until_the_end(net: Net, direction: Direction) -> None:
    writes = direction is Direction.WRITE
    item = net.post(direction)
    net.network.deliver_part(item, [0, 1])
    touches = {touch.agent: touch for touch in net.network.touches()}
    assert (touches["a"].writes, touches["b"].writes) == (not writes, writes)
    assert touches["b"].ranges.tolist() == [[net.there.address + 16, 8], [net.there.address + 32, 8]]
    overlaps = [touches["b"].overlaps(net.there.address + i, 1) for i in range(SIZE)]
    assert [i for i in range(SIZE) if overlaps[i]] == BOTH
    assert touches["b"].overlaps(net.there.address, SIZE)
    net.network.deliver(item)
    assert net.network.touches() == []


def test_touches_of_the_dead(net: Net) -> None:
    item = net.post()
    net.network.die("a")
    assert [(touch.agent, touch.writes) for touch in net.network.touches()] == [("b", True)]
    net.network.vanish(item)
    assert net.network.touches() == []


def test_gpu_memory_is_refused(net: Net) -> None:
    with pytest.raises(AgentError, match="host memory only"):
        net.a.register(1 << 40, 8, 0)
