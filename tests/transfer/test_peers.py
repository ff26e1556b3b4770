"""Links between two engines in one process, over real sockets: made, refused, replayed, broken, mended, replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import zmq

from baton.core.exchange import FirstToken
from baton.core.handoff import Role, TransferMode
from baton.transfer.agent import AgentError, Direction, Ended, Post
from baton.transfer.assembly import Station, assemble
from baton.transfer.giver import GiverConfig
from baton.transfer.taker import TakerConfig
from baton.wire.handoff import PROTOCOL_VERSION, Alive, Done, Fail, Hello, NotNeeded, Reserving
from baton.wire.seal import Frame, Kind, Seal
from tests.transfer.peers_harness import (
    GEOMETRY,
    IDENTITY,
    SECRET,
    LinkEngine,
    NullAgent,
    turn_until,
    with_facts,
    with_geometry,
)

Maker = Callable[..., LinkEngine]
DONE = Done(transfer_id="t", rank=0, num_tokens=7, first_tokens=(FirstToken(index=0, token_id=5),))


@pytest.fixture
def engine() -> Iterator[Maker]:
    made: list[LinkEngine] = []

    def make(name: str, role: Role, **kwargs: Any) -> LinkEngine:
        made.append(LinkEngine(name, role, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def pair(engine: Maker) -> tuple[LinkEngine, LinkEngine]:
    """A giver and a taker that are linked."""
    giver, taker = engine("giver", Role.PREFILL), engine("taker", Role.DECODE)
    link(taker, giver)
    return giver, taker


def link(taker: LinkEngine, giver: LinkEngine) -> None:
    taker.dial(giver)
    turn_until(lambda: taker.peers.num_links and taker.name in giver.agent.connected, giver, taker)
    turn_until(lambda: giver.recorder.of("from_taker"), giver, taker)


def round_trip(giver: LinkEngine, taker: LinkEngine, transfer_id: str = "x") -> None:
    """A message of the taker and its answer arrive, once each."""
    wanted, answer = NotNeeded(transfer_id=transfer_id), Fail(transfer_id=transfer_id, rank=0, reason="r")
    taker.peers.send(giver.name, wanted)
    turn_until(lambda: ("from_taker", taker.name, wanted) in giver.recorder.told, giver, taker)
    giver.peers.send(taker.name, answer)
    turn_until(lambda: ("from_giver", giver.name, answer) in taker.recorder.told, giver, taker)
    assert giver.recorder.told.count(("from_taker", taker.name, wanted)) == 1
    assert taker.recorder.told.count(("from_giver", giver.name, answer)) == 1


class Stranger:
    """A DEALER that sends whole frames of anybody's making."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def answer(self) -> bytes:
        assert self._socket.poll(5000)
        return bytes(self._socket.recv())

    def has_answer(self) -> bool:
        return bool(self._socket.poll(0))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@pytest.fixture
def stranger() -> Iterator[Callable[[int], Stranger]]:
    made: list[Stranger] = []

    def make(port: int) -> Stranger:
        made.append(Stranger(port))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Making a link.


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_dial_makes_a_link_both_ways(engine: Maker, secret: bytes | None) -> None:
    giver, taker = engine("giver", Role.PREFILL, secret=secret), engine("taker", Role.DECODE, secret=secret)
    link(taker, giver)
    assert taker.recorder.of("linked") == [("linked", "127.0.0.1", giver.port, "giver")]
    assert (giver.agent.connected, taker.agent.connected) == ({"taker"}, {"giver"})
    assert giver.peers.num_links == taker.peers.num_links == 1
    round_trip(giver, taker)
    assert giver.peers.num_malformed == taker.peers.num_malformed == 0
    assert giver.peers.num_late == taker.peers.num_late == 0


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_ipv6_and_names(engine: Maker, host: str) -> None:
    giver = engine("giver", Role.PREFILL, host=host)
    taker = engine("taker", Role.DECODE, host="::1")
    taker.peers.dial(host, giver.port)
    turn_until(lambda: taker.recorder.of("linked"), taker, giver)
    round_trip(giver, taker)


def test_a_dial_of_a_linked_giver_is_answered_at_once(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    taker.dial(giver)
    assert taker.recorder.of("linked") == [("linked", "127.0.0.1", giver.port, "giver")] * 2


def test_warm_up_moves_a_few_bytes_of_the_spare_blocks_and_stays_inside(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    spare = GEOMETRY.base_address + GEOMETRY.num_blocks * GEOMETRY.block_bytes
    for one, other in ((giver, "taker"), (taker, "giver")):
        assert one.agent.posts == [
            (Direction.WRITE, other, [[spare, spare, 64]]),
            (Direction.READ, other, [[spare, spare, 64]]),
        ]
        one.turn()
        assert one.strangers == []
        assert not one.peers.ended(Ended(post=Post(99)))


def test_two_mixed_engines_link_in_both_directions(engine: Maker) -> None:
    one, other = engine("one", Role.MIXED), engine("other", Role.MIXED)
    one.dial(other)
    other.dial(one)
    turn_until(lambda: one.recorder.of("linked") and other.recorder.of("linked"), one, other)
    round_trip(one, other, "a")
    round_trip(other, one, "b")
    assert one.peers.num_links == other.peers.num_links == 1
    assert len(one.agent.posts) == 2  # warmed up once


def test_two_addresses_of_one_giver_share_a_link(engine: Maker) -> None:
    giver, taker = engine("giver", Role.PREFILL), engine("taker", Role.DECODE)
    link(taker, giver)
    taker.peers.dial("localhost", giver.port)
    turn_until(lambda: ("linked", "localhost", giver.port, "giver") in taker.recorder.told, taker, giver)
    round_trip(giver, taker)
    handshakes = sum(Frame.parse(frame).kind is Kind.HELLO for frame in taker.sent)  # type: ignore[union-attr]
    deadline = time.monotonic() + 1.5  # longer than the mending of a session that another one replaced would take
    turn_until(lambda: time.monotonic() > deadline, giver, taker)
    assert handshakes == 2 == sum(Frame.parse(f).kind is Kind.HELLO for f in taker.sent)  # type: ignore[union-attr]
    assert not giver.recorder.of("taker_lost") and not taker.recorder.of("giver_lost")


# Refusals.

WIDE = with_geometry("taker", head_dim=16)
REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"identity": msgspec.structs.replace(IDENTITY, protocol_version=9)},
        f"protocol version: giver has {PROTOCOL_VERSION}, taker has 9",
    ),
    (
        {"identity": msgspec.structs.replace(IDENTITY, transfer_modes=(TransferMode.PUSH,))},
        {"identity": msgspec.structs.replace(IDENTITY, transfer_modes=(TransferMode.PULL,))},
        "transfer mode: giver has push, taker has pull",
    ),
    ({}, {"identity": with_facts(dtype="float32")}, "dtype: giver has bfloat16, taker has float32"),
    ({}, {"identity": with_facts(weights="abc")}, "weights: giver has not given, taker has abc"),
    ({}, {"identity": with_facts(dtype=None)}, "dtype: giver has bfloat16, taker has not given"),
    ({"secret": None}, {}, "peer secret: giver has not set, taker has set"),
    ({}, {"secret": None}, "peer secret: giver has set, taker has not set"),
    ({}, {"secret": b"battery staple"}, "peer secret: giver has set, taker has differs"),
    ({}, {"ranks": WIDE}, "head_dim: giver has 8, taker has 16"),
    ({}, {"tp_size": 2}, "tp_size * pp_size: giver has 1 * 1 with 1 ranks, taker has 2 * 1 with 1 ranks"),
    ({"engine_id": "taker"}, {}, "engine_id (an engine cannot take from itself): giver has taker, taker has taker"),
]


@pytest.mark.parametrize(("of_giver", "of_taker", "reason"), REFUSALS, ids=[case[2] for case in REFUSALS])
def test_a_refusal_names_both_values_on_both_sides(
    engine: Maker, caplog: pytest.LogCaptureFixture, of_giver: dict[str, Any], of_taker: dict[str, Any], reason: str
) -> None:
    caplog.set_level(logging.WARNING, "baton")
    giver, taker = engine("giver", Role.PREFILL, **of_giver), engine("taker", Role.DECODE, **of_taker)
    for count in (1, 2, 3):
        taker.dial(giver)
        turn_until(lambda count=count: len(taker.recorder.of("unreachable")) == count, giver, taker)
        taker.skipped_s += 1.5  # a refusal stands for 1 s
        taker.turn()
    assert taker.recorder.of("unreachable") == [("unreachable", "127.0.0.1", giver.port, reason, True)] * 3
    assert sum(Frame.parse(frame).kind is Kind.HELLO for frame in taker.sent) == 3  # type: ignore[union-attr]
    by_giver = [r.getMessage() for r in caplog.records if r.name.endswith("inbound")]
    by_taker = [r.getMessage() for r in caplog.records if r.name.endswith("outbound")]
    assert by_giver == [f"refused a taker at 127.0.0.1: {reason}"]
    assert by_taker == [f"giver at 127.0.0.1:{giver.port} refused us: {reason}"]
    assert SECRET.decode() not in caplog.text
    assert giver.peers.num_links == taker.peers.num_links == 0
    assert giver.agent.connected == taker.agent.connected == set()


def test_roles_are_refused(engine: Maker) -> None:
    decoder, taker = engine("decoder", Role.DECODE), engine("taker", Role.DECODE)
    taker.dial(decoder)
    turn_until(lambda: taker.recorder.of("unreachable"), decoder, taker)
    ((_, _, _, reason, refused),) = taker.recorder.of("unreachable")
    assert (reason, refused) == ("role: giver has decode, taker has decode", True)


def test_a_refusal_stands_for_a_second_without_asking_again(engine: Maker) -> None:
    giver, taker = engine("giver", Role.PREFILL), engine("taker", Role.DECODE, identity=with_facts(dtype="float32"))
    taker.dial(giver)
    turn_until(lambda: taker.recorder.of("unreachable"), giver, taker)
    for _ in range(5):
        taker.dial(giver)
        taker.turn()
    assert len(taker.recorder.of("unreachable")) == 6
    assert sum(Frame.parse(frame).kind is Kind.HELLO for frame in taker.sent) == 1  # type: ignore[union-attr]


def test_a_version_of_which_nothing_else_is_known_is_refused_by_name(
    engine: Maker, stranger: Callable[[int], Stranger]
) -> None:
    giver = engine("giver", Role.PREFILL)
    body = msgspec.msgpack.encode({"type": "Hello", "identity": {"protocol_version": 7, "colour": "red"}, "card": 1})
    other = stranger(giver.port)
    other.send(Seal(SECRET).frame(Kind.HELLO, body, b"n" * 16))
    turn_until(other.has_answer, giver)
    frame = Frame.parse(other.answer())
    assert frame is not None and Seal(SECRET).is_authentic(frame) and frame.session == b"n" * 16
    assert msgspec.msgpack.decode(frame.body) == {
        "type": "Refusal",
        "field": "protocol version",
        "giver": str(PROTOCOL_VERSION),
        "taker": "7",
    }


def test_a_taker_checks_a_welcome_itself(engine: Maker) -> None:
    """A giver that welcomes everybody: its judge is made to find no difference."""
    giver, taker = engine("giver", Role.PREFILL), engine("taker", Role.DECODE, identity=with_facts(dtype="float32"))
    giver.peers._meeting.judge.taker = lambda identity, card: msgspec.msgpack.decode(card, type=type(taker.card))  # type: ignore[method-assign]
    taker.dial(giver)
    turn_until(lambda: taker.recorder.of("unreachable"), giver, taker)
    ((_, _, _, reason, refused),) = taker.recorder.of("unreachable")
    assert (reason, refused) == ("dtype: giver has bfloat16, taker has float32", True)
    assert taker.peers.num_links == 0 and not giver.recorder.told


def test_nobody_there_is_told_after_two_seconds_and_then_at_once(engine: Maker) -> None:
    gone, taker = engine("gone", Role.PREFILL), engine("taker", Role.DECODE)
    gone.close()
    taker.peers.dial("127.0.0.1", gone.port)
    taker.skipped_s = 1.9
    taker.turn()
    assert not taker.recorder.told
    taker.skipped_s = 2.2
    taker.turn()
    told = ("unreachable", "127.0.0.1", gone.port, "no answer within 2 s", False)
    assert taker.recorder.told == [told]
    taker.peers.dial("127.0.0.1", gone.port)
    taker.turn()
    assert taker.recorder.told == [told] * 2
    taker.skipped_s = 2.6  # the first pause is 0.25 s
    taker.turn()
    taker.peers.dial("127.0.0.1", gone.port)
    taker.turn()
    assert taker.recorder.told == [told] * 2  # under way again


def test_a_name_that_does_not_resolve_is_told(engine: Maker) -> None:
    taker = engine("taker", Role.DECODE)
    taker.peers.dial("no-such-host.invalid", 5)
    turn_until(lambda: taker.recorder.told, taker)
    ((name, host, port, reason, refused),) = taker.recorder.told
    assert (name, host, port, refused) == ("unreachable", "no-such-host.invalid", 5, False)
    assert "no-such-host.invalid" in reason


def test_too_many_dials_at_once_fail_instead_of_piling_up(engine: Maker) -> None:
    taker = engine("taker", Role.DECODE)
    for port in range(1, 101):
        taker.peers.dial("127.0.0.1", port)
    taker.turn()
    told = taker.recorder.of("unreachable")
    assert len(told) == 100 - 64 and all("64 other handshakes" in each[3] and not each[4] for each in told)


# Forgery and replay.


def test_replayed_frames_of_a_session_are_dropped(
    pair: tuple[LinkEngine, LinkEngine], stranger: Callable[[int], Stranger]
) -> None:
    giver, taker = pair
    round_trip(giver, taker)
    told, frames = list(giver.recorder.of("from_taker")), list(taker.sent)
    other = stranger(giver.port)
    sealed = [f for f in frames if Frame.parse(f).kind is Kind.TO_GIVER]  # type: ignore[union-attr]
    for frame in sealed:
        other.send(frame)
    turn_until(lambda: giver.peers.num_malformed == len(sealed), giver)
    assert giver.recorder.of("from_taker") == told
    round_trip(giver, taker, "y")  # answers still go to the taker, not to whoever replayed


def test_a_reflected_frame_is_dropped(pair: tuple[LinkEngine, LinkEngine], stranger: Callable[[int], Stranger]) -> None:
    giver, taker = pair
    giver.peers.send("taker", Fail(transfer_id="t", rank=0, reason="r"))
    frame = Frame.parse(giver.sent[-1])
    assert frame is not None and frame.kind is Kind.TO_TAKER
    other = stranger(giver.port)
    other.send(giver.sent[-1])
    other.send(giver.sent[-1][:2] + bytes([Kind.TO_GIVER]) + giver.sent[-1][3:])
    turn_until(lambda: giver.peers.num_malformed == 2, giver)
    round_trip(giver, taker)


def test_a_replayed_hello_changes_nothing(engine: Maker, stranger: Callable[[int], Stranger]) -> None:
    """Neither of the same incarnation, nor of an earlier one at the same address, which would bury the living one."""
    giver, first = engine("giver", Role.PREFILL), engine("first", Role.DECODE)
    link(first, giver)
    port = first.port
    hello = first.sent[0]
    first.close()
    second = engine("second", Role.DECODE, port=port)
    giver.recorder.told.clear()
    link(second, giver)
    assert giver.recorder.of("taker_lost") == [
        ("taker_lost", "first", f"engine second has taken its place at 127.0.0.1:{port}")
    ]
    other = stranger(giver.port)
    for replayed in (hello, second.sent[0]):
        assert Frame.parse(replayed).kind is Kind.HELLO  # type: ignore[union-attr]
        other.send(replayed)
        turn_until(other.has_answer, giver, second)
        assert Frame.parse(other.answer()).kind is Kind.ANSWER  # type: ignore[union-attr]
        round_trip(giver, second, replayed[-5:].hex())
    assert len(giver.recorder.of("taker_lost")) == 1
    assert second.recorder.of("giver_lost") == [] and len(second.recorder.of("linked")) == 1


def test_a_forged_request_for_a_new_handshake_costs_one_handshake(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    from baton.wire.seal import unknown

    session = Frame.parse(taker.sent[-1]).session  # type: ignore[union-attr]
    (sitting,) = giver.peers._inbound._linked.values()
    for _ in range(20):
        giver.sockets.send(sitting.route, unknown(session))
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    round_trip(giver, taker)
    assert sum(Frame.parse(frame).kind is Kind.HELLO for frame in taker.sent) == 2  # type: ignore[union-attr]
    assert not taker.recorder.of("giver_lost")


def test_a_hello_must_carry_the_nonce_of_its_frame(engine: Maker, stranger: Callable[[int], Stranger]) -> None:
    giver, other = engine("giver", Role.PREFILL), engine("other", Role.DECODE)
    body = msgspec.msgpack.encode(Hello(identity=IDENTITY, card=msgspec.msgpack.encode(other.card), nonce=b"a" * 16))
    stranger(giver.port).send(Seal(SECRET).frame(Kind.HELLO, body, b"b" * 16))
    turn_until(lambda: giver.peers.num_malformed == 1, giver)
    assert giver.agent.connected == set()


# Loss, silence, replacement.


@pytest.mark.parametrize("loser", ["giver", "taker"])
def test_a_lost_frame_is_noticed_and_the_link_made_anew(pair: tuple[LinkEngine, LinkEngine], loser: str) -> None:
    """The taker is told `linked` again, so that it says again what is open; nobody is told of a loss."""
    giver, taker = pair
    if loser == "giver":
        giver.drops = 1
        giver.peers.send("taker", Fail(transfer_id="lost", rank=0, reason="r"))
    else:
        taker.drops = 1
        taker.peers.send("giver", NotNeeded(transfer_id="lost"))
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    round_trip(giver, taker)
    assert not taker.recorder.of("giver_lost") and not giver.recorder.of("taker_lost")
    assert giver.peers.num_links == taker.peers.num_links == 1


def test_alive_names_what_is_waited_for_and_its_answer_confirms_it(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    assert taker.peers.confirmed_s("giver") <= taker.now()
    taker.waiting = ("a", "b")
    since = taker.now()
    turn_until(lambda: taker.peers.confirmed_s("giver") > since, giver, taker)
    alive = [told[2] for told in giver.recorder.of("from_taker") if isinstance(told[2], Alive)]
    assert alive[-1].transfer_ids == ("a", "b")
    assert [each.number for each in alive] == list(range(1, len(alive) + 1))
    assert taker.peers.confirmed_s("giver") <= taker.now()
    assert not taker.recorder.of("from_giver")  # Pulse stays inside
    assert taker.peers.confirmed_s("stranger") == float("-inf")


def test_a_handshake_confirms_no_lease(engine: Maker) -> None:
    """Hello names no transfer: only the answer to an Alive says that the giver keeps what was offered."""
    giver, taker = engine("giver", Role.PREFILL), engine("taker", Role.DECODE)
    taker.dial(giver)
    turn_until(lambda: taker.recorder.of("linked"), giver, taker)
    assert taker.peers.confirmed_s("giver") == float("-inf")
    turn_until(lambda: taker.peers.confirmed_s("giver") > float("-inf"), giver, taker)
    since, taker.drops = taker.now(), 1
    for transfer_id in ("lost", "behind what was lost"):
        taker.peers.send("giver", NotNeeded(transfer_id=transfer_id))
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    assert taker.peers.confirmed_s("giver") <= since
    turn_until(lambda: taker.peers.confirmed_s("giver") > since, giver, taker)


def test_a_silent_taker_is_lost_and_comes_back(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    giver.turn()
    giver.skipped_s += 5.1
    giver.peers.tick(giver.now())
    assert giver.recorder.of("taker_lost") == [("taker_lost", "taker", "nothing heard for 5 s")]
    assert giver.peers.num_links == 0
    taker.peers.send("giver", NotNeeded(transfer_id="of the lost session"))
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    round_trip(giver, taker)
    assert not [t for t in giver.recorder.told if t[0] == "from_taker" and "lost" in getattr(t[2], "transfer_id", "")]
    assert giver.peers.num_late >= 1


def test_a_giver_that_paused_acts_on_nothing_that_waited(pair: tuple[LinkEngine, LinkEngine]) -> None:
    """Its takers have given it up: blocks that an old reservation names may belong to others."""
    giver, taker = pair
    turn_until(lambda: giver.peers.num_links, giver, taker)
    before = list(giver.recorder.told)
    taker.peers.send("giver", NotNeeded(transfer_id="old"))
    giver.sockets.wait(5.0)  # it is there
    giver.skipped_s += 6.0
    giver.turn()
    assert giver.recorder.told[len(before) :] == [("taker_lost", "taker", ANY)]
    assert "this engine paused for 6.0 s" in giver.recorder.told[-1][2]
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    round_trip(giver, taker)


def test_the_fence_closes_when_a_turn_was_interrupted(pair: tuple[LinkEngine, LinkEngine]) -> None:
    """`receive` sees a pause between two turns; one inside a turn must show right before a post."""
    giver, _ = pair
    giver.peers.receive(now := giver.now())
    giver.peers.fence(now + 5.0)
    with pytest.raises(AgentError, match=r"this engine paused for 5\.1 s"):
        giver.peers.fence(now + 5.1)
    giver.peers.receive(now + 5.1)
    giver.peers.fence(now + 5.2)


def test_posts_to_takers_are_behind_the_fence() -> None:
    """READs are not: what they fill is this engine's own, and the giver's lease says whether it may be used."""
    station = Station(
        engine_id="mixed",
        role=Role.MIXED,
        modes=tuple(TransferMode),
        facts={},
        bind_host="127.0.0.1",
        bind_port=0,
        advertised_host="127.0.0.1",
        secret=None,
        geometry=GEOMETRY,
        device=None,
        read=None,
        giver=GiverConfig(),
        taker=TakerConfig(),
    )
    parts, _ = assemble(station, NullAgent("mixed"))
    parts.peers.receive(100.0)
    given, taken = parts.flights
    taken.fence(106.0)
    given.fence(104.0)
    with pytest.raises(AgentError):
        given.fence(106.0)
    parts.sockets.close()


def test_a_silent_giver_is_lost_and_comes_back_without_a_dial(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    taker.turn()
    taker.skipped_s += 5.1
    taker.peers.tick(taker.now())
    assert taker.recorder.of("giver_lost") == [("giver_lost", "giver", "nothing heard for 5 s", False)]
    assert taker.peers.num_links == 0
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, giver, taker)
    round_trip(giver, taker)
    assert not taker.recorder.of("unreachable")  # nobody asked


def test_a_restarted_giver_is_known_to_have_ended(engine: Maker, pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    port = giver.port
    giver.close()
    again = engine("again", Role.PREFILL, port=port)
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, again, taker)
    lost = ("giver_lost", "giver", f"engine again has taken its place at 127.0.0.1:{port}", True)
    assert taker.recorder.of("giver_lost", "linked")[1:] == [lost, ("linked", "127.0.0.1", port, "again")]
    assert taker.agent.connected == {"again"}
    round_trip(again, taker)


def test_a_giver_lost_by_silence_is_known_dead_when_another_takes_its_place(
    engine: Maker, pair: tuple[LinkEngine, LinkEngine]
) -> None:
    giver, taker = pair
    giver.close()
    taker.turn()
    taker.skipped_s += 5.1
    taker.peers.tick(taker.now())
    again = engine("again", Role.PREFILL, port=giver.card.port)
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, again, taker)
    assert [told[3] for told in taker.recorder.of("giver_lost")] == [False, True]


def test_another_engine_behind_the_same_address_is_not_a_death(
    engine: Maker, pair: tuple[LinkEngine, LinkEngine]
) -> None:
    """A dialled address may lead to several engines; only the address they say they have proves anything."""
    giver, taker = pair
    port = giver.port
    giver.close()
    other = engine("other", Role.PREFILL, port=port, advertised_port=1)
    turn_until(lambda: len(taker.recorder.of("linked")) == 2, other, taker)
    assert not taker.recorder.of("giver_lost")


def test_peers_without_a_link_are_forgotten(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, _ = pair
    giver.skipped_s += 6
    giver.peers.tick(giver.now())
    assert giver.agent.connected == {"taker"}
    giver.skipped_s += 601
    giver.peers.tick(giver.now())
    assert giver.agent.connected == set()


# Notices.


def test_notices_are_opened_whoever_is_linked(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    notice = giver.peers.seal_notice("taker", DONE)
    opened = taker.peers.open_notice("giver", notice)
    assert opened is not None and opened[0].engine_id == "giver" and opened[1] == DONE
    taker.skipped_s += 5.1
    taker.peers.tick(taker.now())
    assert taker.peers.num_links == 0 and taker.peers.open_notice("giver", notice) is not None


def test_foreign_and_malformed_notices_are_counted(engine: Maker, pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    notice = giver.peers.seal_notice("taker", DONE)
    assert taker.peers.open_notice("nobody", notice) is None
    assert taker.peers.num_late == 1
    bad = [b"", b"x", notice[:-1], notice + b"x", notice[:40] + bytes([notice[40] ^ 1]) + notice[41:]]
    bad += [giver.sent[-1], Seal(None).frame(Kind.NOTICE, msgspec.msgpack.encode(DONE))]
    for payload in bad:
        assert taker.peers.open_notice("giver", payload) is None
    assert taker.peers.num_malformed == len(bad)
    second = engine("second", Role.DECODE)
    link(second, giver)
    assert second.peers.open_notice("giver", notice) is None  # sealed for another engine


def test_large_reservations_pass(pair: tuple[LinkEngine, LinkEngine]) -> None:
    giver, taker = pair
    wanted = Reserving(
        transfer_id="t",
        mode=TransferMode.PUSH,
        block_ids=tuple(range(125_000)),
        num_tokens=10**6,
        prompt_digest=bytes(16),
        num_cached_tokens=0,
    )
    taker.peers.send("giver", wanted)
    turn_until(lambda: ("from_taker", "taker", wanted) in giver.recorder.told, giver, taker)
