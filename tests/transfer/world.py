"""One giver and one taker, with all that is between them moved by a schedule: the protocol's executable form.

The environment may at any moment deliver a control message (in order, each way), land a post, deliver a notice, report
a completion, let either scheduler go on, and do one of `FAULTS`. It keeps two promises, without which no protocol of
this kind is safe (`_may_pass`):

- WRITEs of a giver that the taker has lost land, or never land, before the quarantine (or `dead_s`) is over;
- by then a giver that still runs has noticed the silence too, and posts nothing more.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

from baton.core.exchange import (
    Announce,
    Command,
    Event,
    Expect,
    FirstToken,
    Forgo,
    Grant,
    Landed,
    Prefilled,
    Progress,
    Reserve,
    Settled,
    Withdraw,
)
from baton.core.handoff import PeerAddress, prompt_digest
from baton.transfer.agent import Direction
from baton.transfer.giver import Giver
from baton.transfer.memory_agent import MemoryNetwork, PendingNotice, PendingPost, Touch
from baton.transfer.push import Pusher
from baton.transfer.taker import Taker
from baton.wire.handoff import Alive, Done, FromGiver, FromTaker, Pulse
from tests.transfer.hosts import DEAD_S, LEASE_S, PORT, QUARANTINE_S, Host, Setup, make_giver, make_taker
from tests.transfer.pools import Memory

STEP_S = 2.0  # of time: limits are multiples, so that what ends at the same moment meets
LOSSES = ("unreachable", "reset", "cut", "kill", "drop", "leave")
LANDING = ("deliver", "part", "land_late")  # nothing else moves bytes into a block that is not its own
MENDING = ("taker_notices", "giver_notices", "link", "restart")
FAULTS = ("preempt", "abort", "give_up", "forgo", "mistake", "part", "fail", "twice", "again", "pass", *LOSSES)
"""preempt, abort: of the prefill; give_up: of its hand-off, from outside; forgo: by the taker's client; mistake: that
one sends another prompt; part, fail: of a post; twice, drop: of a notice; again: a control message comes twice; pass:
time does; reset: of the connection; cut: silence; kill: of the giver, with a successor; leave: the taker ends."""

Action = tuple[Any, ...]
"""Name and arguments of a `_do_` method."""
Pending = PendingPost | PendingNotice
_done = msgspec.msgpack.Decoder(Done)


class Violation(AssertionError):
    """The protocol broke a promise."""


def promise(kept: bool, *what: object) -> None:
    """Raise unless kept."""
    if not kept:
        raise Violation(*what)


@dataclass(slots=True)
class Request:
    """At one of the schedulers. stage at the giver: new, queued, running, over; at the taker: new, expected, reserved,
    over. prompt: which one it is (0, or another); computed: tokens (giver); prefilled_s: when (giver); outcome: landed,
    failed, forgone (taker)."""

    stage: str = "new"
    prompt: int = 0
    blocks: tuple[int, ...] = ()
    computed: int = 0
    prefilled_s: float = math.inf
    outcome: str | None = None


@dataclass(frozen=True)
class Wire:
    """The control channel as the taker (rank None) or a rank of the giver sees it."""

    world: World
    rank: int | None = None

    def send(self, engine_id: str, message: FromGiver | FromTaker) -> None:
        """As Control.send: lost without a link."""
        world = self.world
        if self.rank is not None:
            if not world.down and not world.giver_unlinked:
                world.to_taker[self.rank].append(message)
        elif (
            world.linked is world.giver and engine_id == world.giver.engine_id and world.giver.alive and not world.down
        ):
            for queue in world.to_giver:
                queue.append(message)

    def dial(self, host: str, port: int) -> None:
        """As Control.dial."""
        if self.world.linked is None:
            self.world.dialling = True
        else:
            self.world.taker.engines[0].linked(host, port, self.world.linked.link)


class World:
    """See the module. Mutants override the class attributes.

    Attributes:
        linked: the giver that the taker has a link to, as far as it knows.
        down: nothing gets through; giver_unlinked: the giver has noticed.
    """

    giver_type: type[Giver] = Giver
    taker_type: type[Taker] = Taker
    pusher_type: type[Pusher] = Pusher

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now = 0.0
        self.network = MemoryNetwork()
        self.linked: Host | None = None
        self.down = self.giver_unlinked = self.dialling = False
        self.lossy = self.disturbed = False
        self.faults_left = setup.max_faults
        self.to_giver: list[deque[FromTaker]] = [deque() for _ in range(setup.ranks)]
        self.to_taker: list[deque[FromGiver]] = [deque() for _ in range(setup.ranks)]
        self.said: dict[tuple[str, int], Any] = {}  # what came last, each way
        self.unpolled: dict[tuple[Host, int], None] = {}
        self.untold: list[str] = []  # who has to look at the clock
        self.alive_s: list[float] = []  # by number: when the Alive was sent
        self.pulse_s = [-math.inf] * setup.ranks
        self.bounds: dict[Host, float] = {}  # of a lost giver: until when its WRITEs may land
        self.touches: dict[PendingPost, set[tuple[Host, int, int]]] = {}  # host, block, transfer
        self.held: dict[Action, int] = {}
        self.num_pins = 0
        self.graves: list[Host] = []
        self.prefills = [Request() for _ in range(setup.transfers)]
        self.decodes = [Request() for _ in range(setup.transfers)]
        self.taker = make_taker(self.taker_type, setup, self.network, self.clock, Wire(self), self.confirmed_s)
        self.giver = self._start_giver()

    def clock(self) -> float:
        """Virtual seconds."""
        return self.now

    def name(self, i: int) -> str:
        """transfer_id of transfer i: request and attempt."""
        return f"r0#{i}" if self.setup.attempts else f"r{i}#0"

    def index(self, transfer_id: str) -> int:
        """The inverse of `name`."""
        request, attempt = transfer_id[1:].split("#")
        return int(request) + int(attempt)

    def confirmed_s(self, engine_id: str) -> float:
        """When the latest Alive was sent that every rank of the giver has answered."""
        return min(self.pulse_s)

    def _start_giver(self) -> Host:
        types, controls = (self.giver_type, self.pusher_type), [Wire(self, rank) for rank in range(self.setup.ranks)]
        return make_giver(types, self.setup, self.network, self.clock, controls, len(self.graves), self.taker)

    # What may happen, and what must hold.

    def ordinary(self) -> list[Action]:
        """All but faults, in the order of an unhurried run: a loss is noticed and mended last."""
        actions: list[Action] = [("hear", host) for host in (self.giver, self.taker) if host.inbox]
        if not self.down:
            actions += [("to_giver", rank) for rank, queue in enumerate(self.to_giver) if queue]
            actions += [("to_taker", rank) for rank, queue in enumerate(self.to_taker) if queue]
            if self.dialling and self.giver.alive:
                actions.append(("link",))
        actions += [("deliver", item) for item in self.network.pending()]
        actions += [("land_late", item) for item in self.network.orphans()]
        actions += [("poll", *who) for who in self.unpolled]
        actions += [("look", who) for who in self.untold]
        gives = [("prefill", i) for i in range(self.setup.transfers) if self._can_prefill(i)]
        takes = [("decode", i) for i in range(self.setup.transfers) if self._can_decode(i)]
        actions += takes + gives if self.setup.taker_first else gives + takes
        if self.held:
            actions.sort(key=lambda action: self.held.get(action, 0))
        return actions + self._mending()

    def _mending(self) -> list[Action]:
        if self.giver.alive and not self.down:
            return []
        actions: list[Action] = [] if self.linked is None else [("taker_notices",)]
        if self.giver.alive and not self.giver_unlinked:
            actions.append(("giver_notices",))
        if self.setup.heals and self.taker.alive:
            actions.append(("link",) if self.giver.alive else ("restart",))
        elif self.dialling:
            actions.append(("unreachable",))
        return actions

    def faults(self) -> list[Action]:
        """What else may happen."""
        if not self.faults_left:
            return []
        posts = [item for item in self.network.pending() if isinstance(item, PendingPost)]
        notices = [item for item in self.network.pending() if isinstance(item, PendingNotice)]
        linked = self.linked is self.giver and self.giver.alive and not self.down
        faults: list[Action] = [("again", way) for way in (self.said if self.giver.alive and not self.down else ())]
        for i, (prefill, decode) in enumerate(zip(self.prefills, self.decodes, strict=True)):
            faults += [("preempt", i)] if prefill.stage == "running" else []
            faults += [("abort", i)] if prefill.stage in ("queued", "running") else []
            faults += [("give_up", i)] if prefill.stage == "over" and self._is_kept(i) else []
            faults += [("forgo", i)] if decode.stage in ("expected", "reserved") else []
            faults += [("mistake", i)] if decode.stage in ("new", "expected") and not decode.prompt else []
        faults += [("fail", item) for item in posts] + [("part", item) for item in posts if len(item.moves) > 1]
        faults += [(name, item) for item in notices for name in ("twice", "drop")]
        faults += [("reset",), ("cut",)] if linked else []
        faults += [("leave",)] if self.taker.alive and self.giver.alive else []
        faults += [("kill",)] if self.giver.alive and self.taker.alive and not self.graves else []
        faults += [("unreachable",)] if self.dialling else []
        faults += [("pass",)] if self._may_pass() else []
        return [fault for fault in faults if fault[0] in self.setup.faults]

    def _is_kept(self, i: int) -> bool:
        return any(transfer == i for transfer, _, _ in self.giver.pins.values())

    def do(self, action: Action) -> None:
        """Let it happen; check what must hold at any moment."""
        getattr(self, f"_do_{action[0]}")(*action[1:])
        if action[0] in LANDING:
            for host in (self.giver, self.taker):
                promise(not host.alive or host.pool.spoiled() is None, "a reused block has changed", host)
        self._check()

    def fault(self, action: Action) -> None:
        """The same, of a fault."""
        self.faults_left -= 1
        self.disturbed = True
        self.lossy |= action[0] in LOSSES
        self.do(action)

    def hold(self, actions: list[Action]) -> None:
        """Put these behind all else from here on."""
        for action in actions:
            self.held[action] = len(self.held) + 1

    def drain(self) -> None:
        """Let all happen that must in the end. Without a loss everything is over before any time has passed."""
        self.held.clear()
        for _ in range(300):
            actions = self.ordinary()
            if actions:
                self.do(actions[0])
            elif self.open:
                promise(self.lossy, "waits for time to pass, though nothing was lost", self.open)
                promise(self._may_pass(), "time cannot pass", self.open)
                self.do(("pass",))
            else:
                break
        promise(not self.open, "stays open", self.open)
        landed = all(each.outcome == "landed" for each in self.decodes)
        promise(landed or self.disturbed, "nothing was in the way, but not all landed")

    @property
    def open(self) -> list[object]:
        """What has not ended."""
        hosts = [host for host in (self.giver, self.taker) if host.alive]
        engines = [(host.side, engine.num_open) for host in hosts for engine in host.engines if engine.num_open]
        pools = [(host.side, host.pool.owners) for host in hosts if host.pins or not host.pool.is_free]
        requests = [each for each in self.decodes if each.stage not in ("new", "over")]
        return [*engines, *pools, *requests, *self.network.pending(), *self.network.orphans(), *self.unpolled]

    def _check(self) -> None:
        for host in (self.giver, self.taker):
            for rank, engine in enumerate(host.engines if host.alive else ()):
                for event in engine.events:
                    self._judge(host, rank, event)
                engine.events.clear()
            if not self.setup.lag:
                self._do_hear(host)
        under_way = [*self.network.pending(), *self.network.orphans()]
        if any(isinstance(item, PendingPost) and item not in self.touches for item in under_way):
            self._note_touches()
        for item, touched in self.touches.items():
            for host, block, i in touched:
                if host.alive and not host.pool.is_pinned(block, i):
                    raise Violation(f"{_text(item)} touches block {block} of the {host.side}, not pinned")

    def _judge(self, host: Host, rank: int, event: Event) -> None:
        """What an engine says must be right when it says it."""
        if isinstance(event, Settled):
            waiting = host.pins[event.pin][2] if event.pin in host.pins else set()
            promise(rank in waiting, "a pin is settled again", host, event)
            waiting.discard(rank)
            if waiting:
                return  # it is over when all ranks have settled it
        else:
            i = self.index(event.transfer_id)
            decode = self.decodes[i]
            promise(decode.outcome is None, event, "after", decode.outcome)
            decode.outcome = "landed" if isinstance(event, Landed) else "failed"
            if isinstance(event, Landed):
                promise(decode.prompt == self.prefills[i].prompt, "landed the KV of another prompt", event)
                promise(event.first_tokens == _first_tokens(i), "wrong first tokens", event)
                cached, tokens = self.setup.num_cached, range(self.setup.num_cached, self.setup.num_tokens)
                promise(host.pool.holds(decode.blocks, cached, i, tokens), "landed without its bytes", event)
        host.inbox.append(event)

    def _note_touches(self) -> None:
        """Blocks that posts may touch until they end. What a READ reads is under a lease, and not pinned for it."""
        places = {
            agent.name: (host, one)
            for host in (self.giver, self.taker)
            for agent, one in zip(host.agents, host.pool.ranks, strict=False)
        }
        blocks: dict[PendingPost, set[tuple[Host, int]]] = {}
        for touch in self.network.touches():
            if touch.post not in self.touches and (touch.writes or touch.post.direction is Direction.WRITE):
                host, one = places[touch.agent]
                blocks.setdefault(touch.post, set()).update((host, block) for block in _blocks(touch, one))
        for post, touched in blocks.items():
            pins = [owner for host, block in touched for owner in host.pool.owners[block] if owner[0] == "pin"]
            self.touches[post] = {(host, block, pins[0][1] if pins else -1) for host, block in touched}

    # The network.

    def _do_to_giver(self, rank: int) -> None:
        self.said["to_giver", rank] = self.to_giver[rank].popleft()
        self._do_again(("to_giver", rank))

    def _do_to_taker(self, rank: int) -> None:
        self.said["to_taker", rank] = self.to_taker[rank].popleft()
        self._do_again(("to_taker", rank))

    def _do_again(self, way: tuple[str, int]) -> None:
        message, rank = self.said[way], way[1]
        if way[0] == "to_giver":
            self.giver_unlinked = False
            if isinstance(message, Alive):
                self.to_taker[rank].append(Pulse(number=message.number))
            self.giver.engines[rank].from_taker(self.taker.link, message)
        elif isinstance(message, Pulse):
            self.pulse_s[rank] = max(self.pulse_s[rank], self.alive_s[message.number])
        elif self.linked is not None:
            self.taker.engines[0].from_giver(self.linked.link, message)

    def _do_deliver(self, item: Pending) -> None:
        self.network.deliver(item)
        self._over(item)

    def _over(self, item: Pending) -> None:
        """Somebody can find out by polling."""
        name = item.agent
        if isinstance(item, PendingPost):
            self.touches.pop(item, None)
        else:
            name = item.peer
        for host in (self.giver, self.taker):
            for rank, agent in enumerate(host.agents):
                if agent.name == name:
                    self.unpolled[host, rank] = None

    def _do_fail(self, item: PendingPost) -> None:
        self.network.fail(item, "a fault")
        self._over(item)

    def _do_part(self, item: PendingPost) -> None:
        self.network.deliver_part(item, [0])

    def _do_land_late(self, item: PendingPost) -> None:
        self.network.land_late(item)
        self.touches.pop(item, None)

    def _do_twice(self, item: PendingNotice) -> None:
        self.network.duplicate(item)
        self._over(item)

    def _do_drop(self, item: PendingNotice) -> None:
        self.network.drop(item)

    def _do_poll(self, host: Host, rank: int) -> None:
        self.unpolled.pop((host, rank), None)
        if not host.alive:
            return
        ended, notices = host.agents[rank].poll()
        for each in ended:
            promise(host.engines[rank].ended(each), "a post belongs to nobody")
        for notice in notices:
            if notice.peer in self.giver.link.agents:  # else: of an incarnation that is known to have ended
                host.engines[0].from_giver(self.giver.link, _done.decode(notice.payload))

    # Time.

    def _may_pass(self) -> bool:
        """See the module."""
        under_way = (*self.network.pending(), *self.network.orphans())
        for giver, bound in self.bounds.items():
            late = any(isinstance(item, PendingPost) and item.agent in giver.link.agents for item in under_way)
            unaware = giver is self.giver and giver.alive and not self.giver_unlinked
            if self.now + STEP_S >= bound and (late or unaware):
                return False
        return not self.untold

    def _do_pass(self) -> None:
        self.now += STEP_S
        self.untold = ["alive", "giver", "taker"]

    def _do_look(self, who: str) -> None:
        self.untold.remove(who)
        if who == "alive":
            self._say_alive()
            return
        host: Host = getattr(self, who)
        for engine in host.engines if host.alive else ():
            engine.tick()
        self._check()
        leases = [i for i, _, waiting in self.giver.pins.values() if waiting and self.decodes[i].stage == "new"]
        over = [i for i in leases if self.now >= self.prefills[i].prefilled_s + LEASE_S]
        promise(
            who != "giver" or not self.giver.alive or not over, "kept for longer than a lease, though nobody came", over
        )

    def _say_alive(self) -> None:
        if self.linked is not None:
            ids = self.taker.engines[0].alive_ids(self.linked.engine_id)
            Wire(self).send(self.linked.engine_id, Alive(number=len(self.alive_s), transfer_ids=ids))
            self.alive_s.append(self.now)

    # Links, made and lost.

    def _do_link(self) -> None:
        """A handshake: what was under way is lost, and the taker says again what is open."""
        for queue in (*self.to_giver, *self.to_taker):
            queue.clear()
        self.said.clear()
        self.down = self.giver_unlinked = self.dialling = False
        self.linked = self.giver
        self.bounds.pop(self.giver, None)
        self._say_alive()
        self.taker.engines[0].linked("giver", PORT, self.giver.link)

    _do_reset = _do_link

    def _do_unreachable(self) -> None:
        self.dialling = False
        self.taker.engines[0].unreachable("giver", PORT, "no answer", refused=False)

    def _do_cut(self) -> None:
        self.down = True

    def _do_taker_notices(self) -> None:
        assert self.linked is not None
        lost, self.linked = self.linked, None
        self.bounds[lost] = self.now + QUARANTINE_S
        self.taker.engines[0].giver_lost(lost.engine_id, "silent", dead=False)

    def _do_giver_notices(self) -> None:
        self.giver_unlinked = True
        for engine in self.giver.engines:
            engine.taker_lost(self.taker.engine_id, "silent")

    def _do_kill(self) -> None:
        """Its last WRITEs may land; what its scheduler had begun is gone."""
        self.giver.alive = False
        for agent in self.giver.agents:
            self.network.die(agent.name)
        for queue in self.to_giver:
            queue.clear()
        for prefill in self.prefills:
            prefill.stage = "new" if prefill.stage == "new" else "over"

    def _do_leave(self) -> None:
        """The taker ends, and does not come back."""
        self.taker.alive = self.dialling = False
        self.down, self.linked = True, None
        for agent in self.taker.agents:
            self.network.die(agent.name)
        for decode in self.decodes:
            decode.stage = "over"

    def _do_restart(self) -> None:
        dead, known = self.giver, self.linked is not None or self.giver in self.bounds
        self.graves.append(dead)
        self.giver = self._start_giver()
        self.linked, self.down = None, False
        self.pulse_s = [-math.inf] * self.setup.ranks
        if known:
            self.bounds[dead] = self.now + DEAD_S
            self.taker.engines[0].giver_lost(dead.engine_id, "another has taken its place", dead=True)
        if known or self.dialling:
            self._do_link()

    # The schedulers.

    def _pin(self, host: Host, i: int, blocks: tuple[int, ...]) -> int:
        """The request and a pin of its transfer own these blocks."""
        self.num_pins += 1
        host.pins[self.num_pins] = (i, blocks, set(range(len(host.engines))))
        host.pool.retain(blocks, ("request", i))
        host.pool.retain(blocks, ("pin", i, self.num_pins))
        return self.num_pins

    def _do_hear(self, host: Host) -> None:
        while host.inbox:
            event = host.inbox.popleft()
            if isinstance(event, Settled):
                i, blocks, _ = host.pins.pop(event.pin)
                host.pool.release(blocks, ("pin", i, event.pin))
            else:
                self._end_decode(self.index(event.transfer_id))

    def _end_decode(self, i: int) -> None:
        self.decodes[i].stage = "over"
        self.taker.pool.release(self.decodes[i].blocks, ("request", i))

    def _can_decode(self, i: int) -> bool:
        decode = self.decodes[i]
        if decode.stage == "new":
            return not self.setup.attempts or i == 0 or self.decodes[i - 1].stage == "over"
        return decode.stage == "expected" and len(self.taker.pool.free) >= self.setup.num_taken

    def _do_decode(self, i: int) -> None:
        """Expect, then Reserve."""
        decode, setup, transfer_id, taker = self.decodes[i], self.setup, self.name(i), self.taker.engines[0]
        source = PeerAddress(host="giver", port=PORT, engine_id=self.giver.engine_id)
        if decode.stage == "new":
            decode.stage = "expected"
            taker.command(Expect(transfer_id=transfer_id, source=source, mode=setup.mode_of(i)))
            return
        decode.stage, decode.blocks = "reserved", tuple(self.taker.pool.free[: setup.num_taken])
        pin = self._pin(self.taker, i, decode.blocks)
        reserve = Reserve(
            pin=pin,
            transfer_id=transfer_id,
            source=source,
            block_ids=decode.blocks,
            num_tokens=setup.num_tokens,
            prompt_digest=prompt_digest((i, decode.prompt)),
            num_cached_tokens=setup.num_cached,
        )
        taker.command(reserve)

    def _do_mistake(self, i: int) -> None:
        self.decodes[i].prompt = 1

    def _do_forgo(self, i: int) -> None:
        self.decodes[i].outcome = self.decodes[i].outcome or "forgone"
        self._end_decode(i)
        self.taker.engines[0].command(Forgo(transfer_id=self.name(i)))

    def _can_prefill(self, i: int) -> bool:
        prefill = self.prefills[i]
        if not self.giver.alive or prefill.stage == "over":
            return False
        return prefill.stage != "queued" or len(self.giver.pool.free) >= self.setup.num_given

    def _do_prefill(self, i: int) -> None:
        """Announce, Grant, then a chunk a step."""
        prefill = self.prefills[i]
        if prefill.stage == "new":
            prefill.stage = "queued"
            self._tell_giver(Announce(transfer_id=self.name(i)))
        elif prefill.stage == "queued":
            self._grant(i)
        else:
            self._step(i)

    def _tell_giver(self, command: Command) -> None:
        for engine in self.giver.engines:
            engine.command(command)

    def _grant(self, i: int) -> None:
        """Of what was computed before a preemption, full blocks that are still there are a prefix hit."""
        prefill, pool, size = self.prefills[i], self.giver.pool, self.setup.giver_tokens
        hits = 0
        while (hits + 1) * size <= prefill.computed and pool.is_pinned(prefill.blocks[hits], i):
            hits += 1
        prefill.stage, prefill.computed = "running", hits * size
        prefill.blocks = (*prefill.blocks[:hits], *pool.free[: self.setup.num_given - hits])
        grant = Grant(
            pin=self._pin(self.giver, i, prefill.blocks),
            transfer_id=self.name(i),
            block_ids=prefill.blocks,
            num_tokens=self.setup.num_tokens,
            prompt_digest=prompt_digest((i, prefill.prompt)),
            num_final_tokens=prefill.computed,
        )
        self._tell_giver(grant)

    def _step(self, i: int) -> None:
        """One block, or what is left of the prompt: written, then told."""
        prefill = self.prefills[i]
        start, end = prefill.computed, min(prefill.computed + self.setup.giver_tokens, self.setup.num_tokens)
        self.giver.pool.write(prefill.blocks, i, range(start, end))
        prefill.computed = end
        if end < self.setup.num_tokens:
            self._tell_giver(Progress(transfer_id=self.name(i), num_final_tokens=end))
        else:
            self._end_prefill(i, "over")
            prefill.prefilled_s = self.now
            self._tell_giver(Prefilled(transfer_id=self.name(i), first_tokens=_first_tokens(i)))

    def _end_prefill(self, i: int, stage: str) -> None:
        self.prefills[i].stage = stage
        self.giver.pool.release(self.prefills[i].blocks, ("request", i))

    def _do_preempt(self, i: int) -> None:
        self._end_prefill(i, "queued")
        self._tell_giver(Withdraw(transfer_id=self.name(i), reason="preempted", again=True))

    def _do_abort(self, i: int) -> None:
        self._end_prefill(i, "over")
        self._tell_giver(Withdraw(transfer_id=self.name(i), reason="aborted"))

    def _do_give_up(self, i: int) -> None:
        self._tell_giver(Withdraw(transfer_id=self.name(i), reason="given up"))


def _first_tokens(i: int) -> tuple[FirstToken, ...]:
    return (FirstToken(index=0, token_id=1000 + i),)


def _blocks(touch: Touch, one: Memory) -> set[int]:
    base, size = one.geometry.base_address, one.block_bytes
    return {
        block
        for address, num_bytes in touch.ranges.tolist()
        for block in range((address - base) // size, (address + num_bytes - 1 - base) // size + 1)
    }


def _text(item: object) -> str:
    """For messages."""
    if isinstance(item, PendingPost):
        return f"{item.direction.name} {item.post} of {item.agent}"
    return f"notice of {item.agent}" if isinstance(item, PendingNotice) else str(item)


def text(action: Action) -> str:
    """One line."""
    return " ".join(map(_text, action))
