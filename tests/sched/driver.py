"""Runs a scheduler against a stub device whose steps wait in a queue, and checks everything from outside.

A step executes when it is committed, as late as possible. A "network" may take free blocks at any moment and
overwrite them at once: nothing orders it behind queued steps. So a block that changes hands too early is seen twice,
by the list of blocks that queued steps use and by the KV that the steps find.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.handoff import FailurePolicy, Ticket
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.core.step import Step
from baton.engine.stub_runner import StubRunner, mix
from baton.sched.scheduler import Scheduler

VOCAB = 11
EOS = frozenset({10})
NETWORK_DATA = -7


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Sizes of one run."""

    block_tokens: int = 4
    num_blocks: int = 16
    max_num_seqs: int = 4
    budget: int = 8
    max_model_len: int = 32
    depth: int = 1
    caching: bool = True
    eos_rate: float = 0.05
    handoff: FailurePolicy | None = None


@dataclass
class Outcome:
    """What arrived for one sequence."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached: set[int] = field(default_factory=set)
    ticket: Ticket | None = None
    error: str | None = None


@dataclass(frozen=True)
class Queued:
    """A step that the device has not run yet: the blocks it uses, and the (request_id, index) it samples for."""

    step: Step
    blocks: set[int]
    samplers: set[tuple[str, int]]


class Driver:
    """One scheduler, one device queue, one network. Every call checks what can be checked."""

    def __init__(self, setup: Setup, *, watch_blocks: bool = True) -> None:
        self.setup = setup
        self.watch_blocks = watch_blocks
        cache = CacheConfig(
            block_tokens=setup.block_tokens, num_blocks=setup.num_blocks, enable_prefix_caching=setup.caching
        )
        self.cache = CacheManager(cache)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=setup.max_num_seqs,
                max_num_batched_tokens=setup.budget,
                max_model_len=setup.max_model_len,
            ),
            self.cache,
            setup.handoff,
        )
        self.runner = StubRunner(setup.block_tokens, VOCAB, setup.eos_rate)
        self.queue: deque[Queued] = deque()
        self.network: list[list[int]] = []
        self.requests: dict[str, Request] = {}
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.num_steps = 0
        self._tables: dict[int, list[int]] = {}
        self._owners: dict[int, tuple[str, int]] = {}

    def add(self, request: Request) -> None:
        """Submit a request."""
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        for index in range(request.params.n):
            self.outcomes[request.request_id, index] = Outcome(tokens=list(request.resumed))

    def finish(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request or a sequence; exactly the unfinished ones must be reported."""
        chosen = [key for key, outcome in self.outcomes.items() if key[0] == request_id and index in (None, key[1])]
        unfinished = [key for key in chosen if self.outcomes[key].reason is None]
        deltas = self.scheduler.finish(request_id, index, reason)
        assert [(delta.request_id, delta.index) for delta in deltas] == unfinished
        self.take(deltas)

    def schedule(self) -> bool:
        """Plan and queue one step if the device queue has room; whether one was planned."""
        if len(self.queue) >= self.setup.depth:
            return False
        step = self.scheduler.schedule()
        if step is None:
            assert self.waits() or not self.scheduler.has_work(), "nothing runs and nothing ever will"
            return False
        assert step.number == self.num_steps
        self.num_steps += 1
        self.queue.append(Queued(step, self._blocks_used(step), self._samplers(step)))
        return True

    def waits(self) -> bool:
        """Whether something may still happen that lets a step run."""
        return bool(self.queue or self.network)

    def commit(self) -> bool:
        """Execute and commit the oldest queued step; whether there was one."""
        if not self.queue:
            return False
        step = self.queue[0].step
        result = self.runner.execute(step)
        self.queue.popleft()
        self.take(self.scheduler.commit(step, result))
        return True

    def network_takes(self, count: int) -> None:
        """A peer reserves blocks and its data arrives at once."""
        blocks = self.cache.pool.allocate(count)
        if blocks is None:
            return
        self._watch(blocks)
        for block in blocks:
            self.runner.write_block(block, [NETWORK_DATA] * self.setup.block_tokens)
        self.network.append(blocks)

    def network_frees(self) -> None:
        """The peer's oldest reservation ends."""
        if self.network:
            self.cache.pool.release(self.network.pop(0))

    def check(self) -> None:
        """The scheduler's own proof."""
        self.scheduler.check(block for blocks in self.network for block in blocks)

    def drain(self) -> None:
        """Run to the end, in a bounded number of steps, and check all outcomes."""
        while self.network:
            self.network_frees()
        total = sum(r.params.n * self.setup.max_model_len for r in self.requests.values())
        for _ in range(4 * total + 20):
            if not self.scheduler.has_work():
                break
            while self.schedule():
                pass
            self.commit()
            self.check()
        assert not self.scheduler.has_work(), f"starved: {self.scheduler.stats()}"
        assert self.scheduler.stats().used_blocks == 0
        for (request_id, index), outcome in self.outcomes.items():
            check_outcome(self, self.requests[request_id], index, outcome)

    def _blocks_used(self, step: Step) -> set[int]:
        """Blocks the step touches, from the step alone; fresh ones must not be in use by a queued step."""
        size = self.setup.block_tokens
        first = {chunk.slot: chunk.start for chunk in reversed(step.chunks)}
        used = {block for pair in step.copies for block in pair}
        for admission in step.admissions:
            start = first.get(admission.slot, len(admission.request.prompt_token_ids))  # a fork has no chunk
            self._watch(admission.block_ids[start // size :])
            self._tables[admission.slot] = list(admission.block_ids)
            self._owners[admission.slot] = (admission.request.request_id, admission.index)
            used.update(admission.block_ids)
        for chunk in step.chunks:
            self._watch(chunk.new_block_ids)
            self._tables[chunk.slot] += chunk.new_block_ids
            used.update(self._tables[chunk.slot])
        return used

    def _watch(self, fresh: tuple[int, ...] | list[int]) -> None:
        for queued in self.queue:
            early = queued.blocks.intersection(fresh) if self.watch_blocks else ()
            assert not early, f"blocks {early} were handed out while step {queued.step.number} still uses them"

    def owners(self, step: Step) -> list[tuple[str, int]]:
        """(request_id, index) of each chunk, if the step is the last planned."""
        return [self._owners[chunk.slot] for chunk in step.chunks]

    def _samplers(self, step: Step) -> set[tuple[str, int]]:
        """Sequences that sample in the step; a constrained one must know its last token when it runs."""
        samplers = {self._owners[row.slot] for row in step.samples}
        for request_id, index in {*self.owners(step), *samplers}:
            if self.requests[request_id].params.grammar is not None:
                ahead = any((request_id, index) in queued.samplers for queued in self.queue)
                assert not ahead, f"constrained {request_id} runs ahead of its sample"
        return samplers

    def take(self, deltas: list[SequenceDelta]) -> None:
        """Note what arrived; each sequence ends once, with the logprobs that were asked for."""
        for delta in deltas:
            outcome = self.outcomes[delta.request_id, delta.index]
            params = self.requests[delta.request_id].params
            assert outcome.reason is None, f"{delta} after the end"
            wanted = params.prompt_logprobs is not None and delta.token_ids and not outcome.tokens
            prompt = self.requests[delta.request_id].prompt_token_ids
            assert [entry.token_id for entry in delta.prompt_logprobs] == (list(prompt[1:]) if wanted else [])
            assert [entry.token_id for entry in delta.logprobs] == (
                [] if params.logprobs is None else list(delta.token_ids)
            )
            outcome.tokens += delta.token_ids
            outcome.reason = delta.finish_reason
            outcome.stop_token_id = delta.stop_token_id
            outcome.ticket, outcome.error = delta.ticket, delta.error
            if delta.token_ids:
                outcome.num_cached.add(delta.num_cached_tokens)


def make_request(request_id: str, prompt: int, first: int = 0, priority: int = 0, **params: object) -> Request:
    """A request of `prompt` tokens counting up from `first`; params as in SamplingParams."""
    tokens = tuple(range(first, first + prompt))
    return Request(
        request_id=request_id,
        prompt_token_ids=tokens,
        params=SamplingParams(**{"seed": 0, **params}),  # type: ignore[arg-type]
        priority=priority,
    )


def step_of(run: Driver) -> Step:
    """The step that the driver plans now."""
    assert run.schedule()
    return run.queue[-1].step


def expected(driver: Driver, request: Request, index: int) -> tuple[list[int], FinishReason, int | None]:
    """What the sequence yields if nothing else runs: the stub's own continuation, cut by the rules of the API."""
    params = request.params
    room = driver.setup.max_model_len - len(request.prompt_token_ids)
    count = room if params.max_tokens is None else min(room, params.max_tokens)
    tokens = driver.runner.continuation(request, index, count)
    for number, token in enumerate(tokens, start=1):
        if number < params.min_tokens:
            continue
        if token in request.eos_token_ids and not params.ignore_eos:
            return tokens[:number], FinishReason.STOP, None
        if token in params.stop_token_ids:
            return tokens[:number], FinishReason.STOP, token
    return tokens, FinishReason.LENGTH, None


def check_outcome(driver: Driver, request: Request, index: int, outcome: Outcome) -> None:
    """A sequence ended once, with the tokens of an undisturbed run (or a beginning of them, if it was aborted)."""
    tokens, reason, stop_token_id = expected(driver, request, index)
    if outcome.reason in (FinishReason.ABORT, FinishReason.ERROR):
        assert outcome.tokens == tokens[: len(outcome.tokens)]
        return
    assert (outcome.tokens, outcome.reason, outcome.stop_token_id) == (tokens, reason, stop_token_id)
    (num_cached,) = outcome.num_cached
    least_computed = 0 if request.handoff is not None and not request.handoff.gives else 1
    if not request.resumed:
        assert num_cached % driver.setup.block_tokens == 0
        assert num_cached <= len(request.prompt_token_ids) - least_computed
    assert 0 <= num_cached <= len(request.prompt_token_ids)
    assert driver.setup.caching or num_cached == 0


def random_setup(rng: Random, depth: int) -> Setup:
    """Small sizes, with a pool that is often just large enough for one sequence."""
    block_tokens = rng.choice((1, 2, 4, 8))
    max_model_len = rng.randint(6, 40)
    least = -(-max_model_len // block_tokens)
    return Setup(
        block_tokens=block_tokens,
        num_blocks=least + rng.choice((0, 0, 1, 2, least // 2, 4 * least)),
        max_num_seqs=rng.randint(1, 5),
        budget=rng.choice((1, 2, 3, 5, 8, 16, 64)),
        max_model_len=max_model_len,
        depth=depth,
        caching=rng.random() < 0.8,
        eos_rate=rng.choice((0.0, 0.05, 0.2)),
    )


def random_request(rng: Random, request_id: str, max_model_len: int) -> Request:
    """Prompts share prefixes: token i is drawn from one of three families, with a private tail."""
    family = rng.randrange(2)
    length = rng.randint(1, rng.choice((max_model_len // 2, max_model_len - 1)))
    shared = rng.choice((length, rng.randint(0, length)))
    prompt = [mix(family, i) % VOCAB for i in range(shared)] + [rng.randrange(VOCAB) for _ in range(length - shared)]
    max_tokens = rng.choice((None, None, 1, 2, 5, 12))
    params = SamplingParams(
        n=rng.choice((1, 1, 1, 2, 3)),
        seed=rng.randrange(1000),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(4, max_tokens or 4)),
        stop_token_ids=rng.choice(((), (), (3,), (3, 10))),
        ignore_eos=rng.random() < 0.2,
        logprobs=rng.choice((None, None, 0, 2)),
        prompt_logprobs=1 if rng.random() < 0.15 else None,
        grammar=Grammar(kind=GrammarKind.JSON_OBJECT) if rng.random() < 0.15 else None,
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=params,
        priority=rng.choice((0, 0, 0, 1, 2)),
        cache_salt=rng.choice(("", "", "", "tenant")),
        eos_token_ids=EOS,
    )


def maybe_resumed(driver: Driver, request: Request, rng: Random) -> Request:
    """Every second request that may, with some of its outputs known from the start."""
    if request.params.n > 1 or request.params.prompt_logprobs is not None or rng.random() < 0.5:
        return request
    outputs, _, _ = expected(driver, request, 0)
    return replace(request, resumed=tuple(outputs[: rng.randrange(len(outputs))]))


def run_random(seed: int, *, watch_blocks: bool = True) -> Driver:
    """One random schedule from a seed: arrivals, aborts and a network between steps, then run to the end."""
    rng = Random(seed)
    driver = Driver(random_setup(rng, depth=1 + seed % 3), watch_blocks=watch_blocks)
    left = rng.randint(1, 8)
    rate = rng.choice((0.05, 0.2))
    while left > 0:
        event = rng.random()
        if event < rate:
            request = random_request(rng, f"r{left}", driver.setup.max_model_len)
            driver.add(maybe_resumed(driver, request, Random(seed + left)))
            left -= 1
        elif event < 0.23 and driver.requests:
            driver.finish(rng.choice(list(driver.requests)), rng.choice((None, 0, 1)))
        elif event < 0.3:
            driver.network_takes(rng.randint(1, 3))
        elif event < 0.4:
            driver.network_frees()
        elif event < 0.7:
            driver.schedule()
        else:
            driver.commit()
    driver.check()
    driver.drain()
    return driver
