"""The mutable state of one of the n sequences of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.cache.prefix import PrefixChain
from baton.core.request import Request, TokenLogprobs
from baton.sched.status import Status, advance

Order = tuple[int, int, int]
NO_SLOT = -1
_WITH_SLOT = (Status.RESERVED, Status.LANDED, Status.RUNNING)


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Counts obey num_computed_tokens <= num_planned_tokens <= len(tokens) + num_in_flight.

    Attributes:
        key: names the sequence in the cache manager.
        order: (priority, arrival, index); the smaller goes first and is preempted last.
        chain: digests of its full blocks; survives preemption.
        limit: tokens it may hold in total, prompt included.
        tokens: known on the host: the prompt, then outputs (some of them from the start, where a request resumes).
        num_computed_tokens: tokens whose KV is written by committed steps.
        num_planned_tokens: the same, counting steps that are queued or running.
        num_in_flight: samples planned and not committed; they follow `tokens`.
        prefill_end: tokens known at admission; a decode continues from there.
        run: how often it was admitted; results of an earlier run no longer count as computed.
        num_cached_tokens: prompt tokens that the request's first admission found in the prefix cache; None before it.
        gathered: prompt logprobs so far. A new list per run: steps in flight keep the list they belong to.
        forks: siblings that will take over this sequence's prefill when it is planned to the end, or its landed
            blocks when it is first planned.
        awaits_kv: the KV of its prompt is to come from another engine, and has not.
    """

    request: Request
    index: int
    key: int
    order: Order
    chain: PrefixChain
    limit: int
    status: Status = Status.WAITING
    tokens: list[int] = field(default_factory=list)
    slot: int = NO_SLOT
    num_computed_tokens: int = 0
    num_planned_tokens: int = 0
    num_in_flight: int = 0
    prefill_end: int = 0
    run: int = 0
    num_cached_tokens: int | None = None
    gathered: list[TokenLogprobs] = field(default_factory=list)
    forks: list[Sequence] = field(default_factory=list)
    awaits_kv: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Outputs known on the host."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_expected_tokens(self) -> int:
        """Tokens known or in flight."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_unplanned_tokens(self) -> int:
        """Known or in-flight tokens whose KV no step computes yet."""
        return self.num_expected_tokens - self.num_planned_tokens

    @property
    def has_output(self) -> bool:
        """Whether its first output is known or in flight."""
        return self.num_expected_tokens > self.num_prompt_tokens

    @property
    def in_prefill(self) -> bool:
        """Whether tokens known at admission are still to be planned."""
        return self.num_planned_tokens < self.prefill_end

    @property
    def can_decode(self) -> bool:
        """Whether a decode may be planned now: past prefill, below its limit, and not waiting for its own sample."""
        lockstep = self.request.params.grammar is not None
        return (
            self.status in (Status.RUNNING, Status.LANDED)
            and not self.in_prefill
            and self.num_expected_tokens < self.limit
            and not (lockstep and self.num_in_flight > 0)
        )

    @property
    def live_forks(self) -> list[Sequence]:
        """Forks that did not end while they waited for this sequence."""
        return [child for child in self.forks if child.status is not Status.FINISHED]

    @property
    def gathers_prompt_logprobs(self) -> bool:
        """Whether its prefill must compute every prompt position: a prefix hit would lose their logprobs."""
        return self.request.params.prompt_logprobs is not None and not self.has_output

    def start(self, slot: int, num_hit_tokens: int) -> None:
        """Waiting or preempted -> running in `slot`, with the first num_hit_tokens computed."""
        assert self.num_in_flight == 0, f"{self.num_in_flight} samples in flight at admission"
        assert num_hit_tokens < len(self.tokens), (num_hit_tokens, len(self.tokens))
        self.status = advance(self.status, Status.RUNNING)
        self.slot = slot
        self.run += 1
        self.prefill_end = len(self.tokens)
        self.num_computed_tokens = self.num_planned_tokens = num_hit_tokens

    def fork_from(self, parent: Sequence, slot: int) -> None:
        """Waiting -> running in `slot`, with the parent's prompt planned and a first sample of its own in flight."""
        assert self.tokens == list(parent.request.prompt_token_ids) and not parent.in_prefill
        self.start(slot, 0)
        self.num_planned_tokens = len(self.tokens)
        self.num_in_flight = 1

    def fork_landed(self, slot: int) -> None:
        """Waiting -> running in `slot`, with its prompt's KV landed for a sibling and its first token known."""
        self.start(slot, 0)
        self.prefill_end = self.num_planned_tokens = self.num_prompt_tokens

    def reserve(self, slot: int) -> None:
        """Waiting -> reserved: another engine fills its blocks."""
        self.status = advance(self.status, Status.RESERVED)
        self.slot = slot

    def unreserve(self) -> int:
        """Reserved -> waiting. Returns the slot it held."""
        self.status = advance(self.status, Status.WAITING)
        slot, self.slot = self.slot, NO_SLOT
        return slot

    def land(self) -> None:
        """Reserved -> landed: the KV of its prompt is there, and its first token is known."""
        assert self.num_output_tokens == 1, f"landed with {self.num_output_tokens} outputs"
        self.status = advance(self.status, Status.LANDED)
        self.run += 1
        self.prefill_end = self.num_computed_tokens = self.num_planned_tokens = self.num_prompt_tokens

    def enter(self) -> None:
        """Landed -> running: the step being planned is its first."""
        self.status = advance(self.status, Status.RUNNING)

    def adopt(self, token: int) -> None:
        """Its first output was sampled by another engine."""
        assert self.num_expected_tokens == self.num_prompt_tokens, f"{self.num_expected_tokens} tokens expected"
        self.tokens.append(token)

    def plan(self, num_tokens: int) -> bool:
        """A step computes the next num_tokens. Returns whether it also samples the token after them."""
        assert self.status is Status.RUNNING, self.status
        assert 0 < num_tokens <= self.num_unplanned_tokens, (num_tokens, self.num_unplanned_tokens)
        self.num_planned_tokens += num_tokens
        if self.num_unplanned_tokens > 0:
            return False
        assert self.num_expected_tokens < self.limit, (self.num_expected_tokens, self.limit)
        self.num_in_flight += 1
        return True

    def commit(self, run: int, num_tokens: int) -> bool:
        """A step of this run has completed: num_tokens are computed. False if that run is over."""
        if self.status is not Status.RUNNING or run != self.run:
            return False
        assert self.num_computed_tokens <= num_tokens <= self.num_planned_tokens
        self.num_computed_tokens = num_tokens
        return True

    def append(self, token: int) -> None:
        """The oldest sample in flight has arrived."""
        assert self.num_in_flight > 0, "a token that nobody planned"
        self.num_in_flight -= 1
        self.tokens.append(token)

    def preempt(self) -> None:
        """Running or landed -> preempted: nothing is computed any more; samples in flight still arrive."""
        self.status = advance(self.status, Status.PREEMPTED)
        self.slot = NO_SLOT
        self.num_computed_tokens = self.num_planned_tokens = self.prefill_end = 0
        self.gathered = []

    def finish(self) -> None:
        """Any state -> finished."""
        self.status = advance(self.status, Status.FINISHED)
        self.slot = NO_SLOT

    def check(self) -> None:
        """Assert the order of the counts."""
        assert 0 <= self.num_computed_tokens <= self.num_planned_tokens <= self.num_expected_tokens, self
        assert self.num_expected_tokens <= self.limit, (self.num_expected_tokens, self.limit)
        assert (self.slot != NO_SLOT) == (self.status in _WITH_SLOT), (self.slot, self.status)
