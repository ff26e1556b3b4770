"""Two schedulers that hand over, and a network between them that does what it is told, when it is told.

`Wire` is the least that a transfer thread can be: it keeps every promise of `core/exchange.py` and chooses nothing
itself. A posted piece moves when it is delivered, however late, from and to the very blocks it was posted for: a block
that changed hands too early is seen by the stub runner, as a wrong value, on one side or the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from baton.core.exchange import (
    Announce,
    Command,
    Event,
    Expect,
    Failed,
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
from baton.core.handoff import FailurePolicy, Handoff, PeerAddress
from baton.core.request import FinishReason, Request
from tests.sched.driver import Driver, Setup, check_outcome, random_request, random_setup

SOURCE = PeerAddress(host="giver", port=1)


@dataclass(frozen=True)
class Post:
    """Tokens [first, last) on their way between two pins."""

    grant: Grant
    reserve: Reserve
    first: int
    last: int


@dataclass
class Transfer:
    """One transfer on the wire. over: nothing more is posted, and only pins are left to settle."""

    grant: Grant | None = None
    reserve: Reserve | None = None
    final: int = 0
    sent: int = 0
    first_tokens: tuple[FirstToken, ...] | None = None
    posts: list[Post] = field(default_factory=list)
    giver_pins: list[int] = field(default_factory=list)
    over: bool = False
    announced: bool = False
    expected: bool = False
    told: bool = False  # the taker knows the end, or does not want to


class Side(Driver):
    """One scheduler of a pair, with the events that are on their way to it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.events: deque[Event] = deque()
        self.wire: Wire | None = None

    def waits(self) -> bool:
        assert self.wire is not None
        self.wire.feed()
        return super().waits() or bool(self.events) or self.wire.busy()

    def hear(self) -> bool:
        """Take the oldest event; whether there was one."""
        if not self.events:
            return False
        self.take(self.scheduler.on_event(self.events.popleft()))
        return True


class Wire:
    """The network, and the transfer threads of both sides."""

    def __init__(self, giver: Side, taker: Side) -> None:
        self.giver, self.taker = giver, taker
        self.transfers: dict[str, Transfer] = {}
        self.num_landed = 0
        self.log: list[Command] = []
        giver.wire = taker.wire = self

    def busy(self) -> bool:
        """Whether something of a transfer is still to come."""
        return any(self._pinned(each) or (each.expected and not each.told) for each in self.transfers.values())

    def _pinned(self, transfer: Transfer) -> bool:
        return bool(transfer.giver_pins) or transfer.reserve is not None

    def feed(self) -> None:
        """Take the commands of both sides."""
        for side in (self.giver, self.taker):
            for command in side.scheduler.take_commands():
                self.log.append(command)
                self._command(command, self.transfers.setdefault(command.transfer_id, Transfer()))

    def _command(self, command: Command, transfer: Transfer) -> None:
        match command:
            case Announce():
                transfer.announced = True
            case Grant():
                assert transfer.grant is None and transfer.announced, "granted twice, or never announced"
                assert len(command.block_ids) == -(-command.num_tokens // self.giver.setup.block_tokens)
                transfer.grant, transfer.final = command, command.num_final_tokens
                transfer.sent = min(transfer.sent, command.num_final_tokens)
                transfer.giver_pins.append(command.pin)
            case Progress():
                assert transfer.over or (transfer.grant and transfer.first_tokens is None), command
                assert transfer.over or transfer.final < command.num_final_tokens, "no progress"
                transfer.final = command.num_final_tokens
            case Prefilled():
                assert transfer.over or (transfer.grant and transfer.first_tokens is None), command
                assert command.first_tokens
                transfer.final, transfer.first_tokens = self._num_tokens(transfer), command.first_tokens
            case Withdraw():
                transfer.grant = None
                if not command.again:
                    self.fail(command.transfer_id, command.reason)
            case Expect():
                assert not transfer.expected, "expected twice"
                transfer.expected = True
                if transfer.over:
                    self.fail(command.transfer_id, "gone")
            case Reserve():
                transfer.reserve = command
            case Forgo():
                transfer.told = transfer.over = True

    def _num_tokens(self, transfer: Transfer) -> int:
        return transfer.grant.num_tokens if transfer.grant else 0

    def post(self, transfer_id: str) -> None:
        """Send what is final and has not been sent."""
        transfer = self.transfers[transfer_id]
        if transfer.over or transfer.grant is None or transfer.reserve is None:
            return
        assert transfer.grant.prompt_digest == transfer.reserve.prompt_digest, transfer_id
        first = max(transfer.sent, transfer.reserve.num_cached_tokens)
        if first < transfer.final:
            transfer.posts.append(Post(transfer.grant, transfer.reserve, first, transfer.final))
            transfer.sent = transfer.final

    def move(self, transfer_id: str, place: int = 0) -> None:
        """One posted piece crosses, from and to the blocks it was posted for."""
        transfer = self.transfers[transfer_id]
        if not transfer.posts:
            return
        post = transfer.posts.pop(place % len(transfer.posts))
        values, salt = self.giver.runner.read_tokens(post.grant.block_ids, post.first, post.last)
        cached = post.reserve.num_cached_tokens
        self.taker.runner.write_tokens(post.reserve.block_ids, post.first - cached, values, salt)

    def land(self, transfer_id: str, keep: int = 99) -> None:
        """If all has crossed, say so.

        Args:
            keep: first tokens that come with it, at most.
        """
        transfer = self.transfers[transfer_id]
        reserve = transfer.reserve
        if transfer.over or transfer.first_tokens is None or reserve is None or transfer.posts:
            return
        if max(transfer.sent, reserve.num_cached_tokens) < reserve.num_tokens:
            return
        transfer.over = transfer.told = True
        self.num_landed += 1
        self.taker.events.append(Landed(transfer_id=transfer_id, first_tokens=transfer.first_tokens[:keep]))

    def fail(self, transfer_id: str, reason: str = "broken", *, refused: bool = False) -> None:
        """The transfer ends here; what is posted may still cross."""
        transfer = self.transfers[transfer_id]
        if transfer.expected and not transfer.told:
            transfer.told = True
            self.taker.events.append(Failed(transfer_id=transfer_id, reason=reason, refused=refused))
        transfer.over = True

    def settle(self, transfer_id: str) -> None:
        """Settle every pin that nothing touches any more."""
        transfer = self.transfers[transfer_id]
        busy = {post.grant.pin for post in transfer.posts}
        current = None if transfer.over or transfer.grant is None else transfer.grant.pin
        for pin in [pin for pin in transfer.giver_pins if pin not in busy and pin != current]:
            transfer.giver_pins.remove(pin)
            self.giver.events.append(Settled(pin=pin))
        if transfer.over and transfer.reserve is not None and not transfer.posts:
            self.taker.events.append(Settled(pin=transfer.reserve.pin))
            transfer.reserve = None


class Pair:
    """A giver, a taker and the wire between them."""

    def __init__(self, giver: Setup, taker: Setup) -> None:
        self.giver, self.taker = Side(giver), Side(taker)
        self.sides = (self.giver, self.taker)
        self.wire = Wire(self.giver, self.taker)
        self.num_timeouts = 0

    def add(self, request: Request, transfer_id: str, *, gives: bool = True, takes: bool = True) -> None:
        """One request on both sides, as a router sends it; or one leg of it."""
        if gives:
            self.giver.add(giving(request, transfer_id))
        if takes:
            self.taker.add(taking(request, transfer_id))

    def turn(self) -> bool:
        """Everything goes on by one step, without delay. Returns whether anything happened on either side."""
        moved = False
        for side in self.sides:
            preemptions = side.scheduler.stats().num_preemptions
            while side.schedule():
                pass
            moved |= side.commit() or side.scheduler.stats().num_preemptions > preemptions
        said = len(self.wire.log)
        self.wire.feed()
        for transfer_id in self.wire.transfers:
            self.wire.post(transfer_id)
            while self.wire.transfers[transfer_id].posts:
                self.wire.move(transfer_id)
            self.wire.land(transfer_id)
            self.wire.settle(transfer_id)
        for side in self.sides:
            while side.hear():
                moved = True
        self.check()
        return moved or len(self.wire.log) > said

    def check(self) -> None:
        """Both schedulers' own proofs."""
        for side in self.sides:
            side.check()

    def drain(self) -> None:
        """Run to the end in a bounded number of turns; nothing is left, and every token is right."""
        for side in self.sides:
            while side.network:
                side.network_frees()
        total = sum(r.params.n * s.setup.max_model_len for s in self.sides for r in s.requests.values())
        for _ in range(6 * total + 40):
            if not self.turn() and not self._end_halves():
                self._time_out()
            if not any(side.scheduler.has_work() for side in self.sides) and not self.wire.busy():
                break
        for side in self.sides:
            stats = side.scheduler.stats()
            assert not side.scheduler.has_work(), f"starved: {stats}"
            assert not side.scheduler.take_commands() and not side.events
            assert (stats.used_blocks, stats.pinned_blocks, stats.num_reserved) == (0, 0, 0)
            for (request_id, index), outcome in side.outcomes.items():
                check_outcome(side, side.requests[request_id], index, outcome)

    def _end_halves(self) -> bool:
        """What a lease, or a peer that does not know the transfer, ends. Returns whether there was anything."""
        ended = False
        for transfer_id, transfer in self.wire.transfers.items():
            if transfer.first_tokens is not None and not transfer.over and not transfer.expected:
                ended = transfer.over = True
            if transfer.expected and not transfer.told and not transfer.announced:
                self.wire.fail(transfer_id, "gone")
                ended = True
        return ended

    def _time_out(self) -> None:
        """Nothing moves: the oldest reservation is given up.

        It can come to that where pools are small: the taker keeps its blocks for a prompt that the giver has no blocks
        for, because it keeps them for a prompt that the taker has no blocks for.
        """
        for transfer_id, transfer in self.wire.transfers.items():
            if transfer.reserve is not None and not transfer.over:
                self.num_timeouts += 1
                self.wire.fail(transfer_id, "timed out")
                return


def giving(request: Request, transfer_id: str) -> Request:
    """The prefill leg: one token."""
    params = replace(request.params, max_tokens=1, min_tokens=min(1, request.params.min_tokens))
    return replace(request, params=params, handoff=Handoff(transfer_id=transfer_id))


def taking(request: Request, transfer_id: str) -> Request:
    """The decode leg."""
    params = replace(request.params, prompt_logprobs=None)
    return replace(request, params=params, handoff=Handoff(transfer_id=transfer_id, source=SOURCE))


def random_pair(rng: Random) -> Pair:
    """Small sizes on both sides; blocks of 4 and 8 tokens in every pairing, and some others."""
    policy = rng.choice((FailurePolicy.RECOMPUTE, FailurePolicy.RECOMPUTE, FailurePolicy.FAIL))
    giver = random_setup(rng, depth=rng.randint(1, 3))
    sides = []
    for _ in range(2):
        block_tokens = rng.choice((4, 8, 4, 8, 1, 2))
        least = -(-giver.max_model_len // block_tokens)
        drawn = replace(
            random_setup(rng, depth=rng.randint(1, 3)),
            block_tokens=block_tokens,
            max_model_len=giver.max_model_len,
            num_blocks=least + rng.choice((0, 0, 1, 2, least // 2, 4 * least)),
            eos_rate=giver.eos_rate,
            handoff=policy,
        )
        sides.append(drawn)
    return Pair(*sides)


def run_pair(seed: int) -> Pair:
    """One random schedule: both legs in any order, aborts, failures, late settling; then run to the end."""
    rng = Random(seed)
    pair = random_pair(rng)
    left = rng.randint(1, 7)
    later: list[tuple[Request, str, bool]] = []
    fault_rate = rng.choice((0.0, 0.01, 0.03))
    rate = rng.choice((0.03, 0.1))
    while left > 0 or later:
        dice = rng.random()
        if left > 0 and dice < rate:
            left -= 1
            request = random_request(rng, f"r{left}", pair.giver.setup.max_model_len)
            if rng.random() < 0.15:
                rng.choice(pair.sides).add(request)
                continue
            legs = [(request, f"t{left}", True), (request, f"t{left}", False)]
            rng.shuffle(legs)
            later += legs if rng.random() < 0.95 else legs[:1]
        elif later and dice < rate + 0.1:
            request, transfer_id, gives = later.pop(0)
            pair.add(request, transfer_id, gives=gives, takes=not gives)
        else:
            random_act(pair, rng, fault_rate)
    for _ in range(rng.randint(0, 60)):
        random_act(pair, rng, fault_rate)
    pair.check()
    pair.drain()
    return pair


def random_act(pair: Pair, rng: Random, fault_rate: float) -> None:
    """Anything that may happen next, anywhere."""
    side, wire = rng.choice(pair.sides), pair.wire
    if rng.random() < fault_rate:
        if rng.random() < 0.5 and side.requests:
            reason = rng.choice((FinishReason.ABORT, FinishReason.ABORT, FinishReason.ABORT))
            side.finish(rng.choice(list(side.requests)), rng.choice((None, 0, 1)), reason)
        elif wire.transfers:
            wire.feed()
            wire.fail(rng.choice(list(wire.transfers)), refused=rng.random() < 0.2)
        return
    act = rng.randrange(8)
    if act == 0:
        wire.feed()
    elif act == 1:
        side.hear()
    elif act <= 3:
        side.schedule()
    elif act <= 5:
        side.commit()
    elif wire.transfers:
        transfer_id = rng.choice(list(wire.transfers)[-4:])
        what = rng.randrange(5)
        if what <= 1:
            wire.post(transfer_id)
        elif what == 2:
            wire.move(transfer_id, rng.randrange(4))
        elif what == 3:
            wire.land(transfer_id, keep=rng.choice((99, 99, 1)))
        else:
            wire.settle(transfer_id)
