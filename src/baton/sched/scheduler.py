"""Plans steps and takes their results: `schedule() -> Step`, `commit(step, result) -> deltas`.

With hand-offs, it also says what the transfer thread must know (`take_commands`) and hears from it (`on_event`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from baton.cache.manager import CacheManager
from baton.core.config import SchedulerConfig
from baton.core.errors import ConfigError, RequestError
from baton.core.exchange import Command, Event, Failed, FirstToken, Landed, Settled
from baton.core.handoff import FailurePolicy, Handoff
from baton.core.request import FinishReason, Request, SequenceDelta, TokenLogprobs
from baton.core.stats import SchedulerStats
from baton.core.step import Step, StepResult
from baton.core.stops import first_stop, stop_after, token_limit
from baton.sched.admission import admit_waiting
from baton.sched.draft import Planned, StepDraft
from baton.sched.landing import publish_landed, settle_landed
from baton.sched.planning import fork_landed, plan_decodes, plan_prefills
from baton.sched.roster import Roster
from baton.sched.sequence import Sequence
from baton.sched.status import Status


class Scheduler:
    """Continuous batching over one cache. Pure: the caller runs the steps, in order, and brings the results, in order.

    `schedule` may run ahead of `commit` by any number of steps. A step counts as complete at its `commit`, so that
    must not be called before the step's forward pass and copies have ended on the device.

    Args:
        handoff: what becomes of a request whose KV does not come from another engine; None: there is no transfer
            thread, and requests with a hand-off are refused.

    Raises:
        ConfigError: the cache cannot hold one sequence of max_model_len.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheManager, handoff: FailurePolicy | None = None) -> None:
        pool_tokens = cache.config.num_blocks * cache.block_tokens
        if pool_tokens < config.max_model_len:
            raise ConfigError(
                f"the KV cache holds {pool_tokens} tokens, fewer than max_model_len={config.max_model_len}: "
                "enlarge the cache or lower max_model_len"
            )
        self.config = config
        self.cache = cache
        self._handoff = handoff
        self._roster = Roster(config.max_num_seqs, cache)
        self._live: dict[str, list[Sequence]] = {}
        self._in_flight: deque[StepDraft] = deque()
        self._arrivals = count()
        self._keys = count()
        self._next_step = 0
        self._num_fallbacks = 0
        self._stalled = False

    def add(self, request: Request) -> None:
        """Queue the n sequences of a request.

        Raises:
            RequestError: empty or too long prompt, nothing left to generate, or a request_id or transfer_id that is in
                use.
        """
        self._validate(request)
        self._stalled = False
        arrival = next(self._arrivals)
        seqs = [self._sequence(request, index, arrival) for index in range(request.params.n)]
        self._live[request.request_id] = seqs
        seqs[0].forks = seqs[1:]
        self._roster.enqueue(seqs[0])
        if request.handoff is not None and request.handoff.gives:
            self._roster.gives.open(request, request.handoff)
        elif request.handoff is not None:
            self._roster.takes.open(seqs[0], request.handoff)

    def _validate(self, request: Request) -> None:
        num_prompt, max_len = len(request.prompt_token_ids), self.config.max_model_len
        if request.request_id in self._live:
            raise RequestError(f"request_id {request.request_id!r} is already in use", param="request_id")
        if num_prompt == 0:
            raise RequestError("prompt must have at least one token", param="prompt")
        if num_prompt >= max_len:
            raise RequestError(
                f"prompt has {num_prompt} tokens; at most {max_len - 1} fit, for max_model_len={max_len}",
                param="prompt",
            )
        if request.handoff is not None:
            self._validate_handoff(request.handoff)
        if first_stop(request, request.resumed, max_len)[1] is not None:
            raise RequestError(
                "resume_token_ids hold the end already; nothing is left to generate", param="resume_token_ids"
            )

    def _validate_handoff(self, handoff: Handoff) -> None:
        if self._handoff is None:
            raise RequestError("this engine has no peers; start it with a role", param="kv_transfer_params")
        side = self._roster.gives if handoff.gives else self._roster.takes
        if side.knows(handoff.transfer_id):
            raise RequestError(
                f"transfer_id {handoff.transfer_id!r} is in use; make a new one for every attempt",
                param="kv_transfer_params.transfer_id",
            )

    def _sequence(self, request: Request, index: int, arrival: int) -> Sequence:
        return Sequence(
            request=request,
            index=index,
            key=next(self._keys),
            order=(request.priority, arrival, index),
            chain=self.cache.chain(request.cache_salt, arrival),
            limit=token_limit(request, self.config.max_model_len),
            tokens=[*request.prompt_token_ids, *request.resumed],
        )

    def finish(
        self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[SequenceDelta]:
        """End one sequence of a request, or all, in whatever state they are. Unknown or ended ones are ignored.

        Returns:
            The last delta of each sequence ended here; tokens of theirs still in flight are dropped.
        """
        self._stalled = False
        seqs = self._live.get(request_id, [])
        # Siblings before the leader, so that its forks are not queued only to be ended.
        chosen = [seq for seq in reversed(seqs) if index in (None, seq.index) and seq.status is not Status.FINISHED]
        deltas = []
        for seq in chosen:
            self._end(seq, reason)
            deltas.append(_delta(seq, reason))
        return deltas[::-1]

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        self._roster.scatter_landed(seq)
        heirs, seq.forks = seq.live_forks, []
        if heirs:
            heirs[0].forks = heirs[1:]
            self._inherit(seq, heirs[0])
        self._roster.finish(seq, reason)
        request = seq.request
        if all(sibling.status is Status.FINISHED for sibling in self._live[request.request_id]):
            del self._live[request.request_id]
            self._roster.gives.close(request.request_id)
            if request.handoff is not None and not request.handoff.gives:
                self._roster.takes.forgo(request.handoff)

    def _inherit(self, seq: Sequence, heir: Sequence) -> None:
        """`seq` ends before its siblings could branch off: one takes its place."""
        if seq.awaits_kv:
            self._roster.takes.inherit(seq, heir)
        if seq.status is Status.RESERVED:
            self._roster.hand_over(seq, heir)
        else:
            self._roster.enqueue(heir)

    def schedule(self) -> Step | None:
        """Plan the next step; None if nothing can run before a step in flight is committed, or there is no work."""
        draft = StepDraft(self._next_step, self.config.max_num_batched_tokens)
        plan_decodes(draft, self._roster)
        fork_landed(draft, self._roster)
        plan_prefills(draft, self._roster)
        admit_waiting(draft, self._roster)
        if not draft.chunks:
            self._stalled = not draft.preempted
            return None
        for seq in draft.used:
            self.cache.touch(seq.key, draft.number)
        self._next_step += 1
        self._in_flight.append(draft)
        return draft.build()

    def commit(self, step: Step, result: StepResult) -> list[SequenceDelta]:
        """The oldest step in flight has completed, copies included: take its tokens.

        Returns:
            One delta per live sequence that got a token or failed, in the order of step.samples.
        """
        draft = self._in_flight.popleft()
        assert draft.number == step.number == result.number, (draft.number, step.number, result.number)
        self.cache.settle(step.number)
        self._stalled = False
        for planned, logprobs in zip(draft.planned_chunks, result.prompt_logprobs, strict=True):
            planned.gathered.extend(logprobs)
            self._commit_computed(planned)
        deltas = []
        outcomes = zip(draft.planned_samples, result.token_ids, result.logprobs, strict=True)
        for place, (planned, token, logprob) in enumerate(outcomes):
            if planned.seq.status is Status.FINISHED:
                continue
            self._commit_computed(planned)
            if place in result.failed:
                self._end(planned.seq, FinishReason.ERROR)
                deltas.append(_delta(planned.seq, FinishReason.ERROR))
            else:
                deltas.append(self._commit_token(planned, token, logprob))
        self._roster.gives.tell_progress()
        return deltas

    def _commit_computed(self, planned: Planned) -> None:
        seq = planned.seq
        self._roster.gives.computed(seq, planned.run, planned.num_tokens)
        if seq.commit(planned.run, planned.num_tokens):
            self.cache.publish(seq.key, seq.tokens, planned.num_tokens)

    def _commit_token(self, planned: Planned, token: int, logprob: TokenLogprobs | None) -> SequenceDelta:
        seq = planned.seq
        is_first = seq.num_output_tokens == 0
        seq.append(token)
        self._roster.gives.sampled(seq, token, logprob)
        delta = self._token_delta(seq, logprob, tuple(planned.gathered) if is_first else ())
        if delta.finish_reason is not None:
            self._end(seq, delta.finish_reason)
        return delta

    def _token_delta(
        self, seq: Sequence, logprob: TokenLogprobs | None, prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> SequenceDelta:
        """What the caller is told of the latest token. With a finish_reason, the sequence must be ended next."""
        token = seq.tokens[-1]
        stop = stop_after(seq.request, token, seq.num_output_tokens, seq.limit)
        return SequenceDelta(
            request_id=seq.request.request_id,
            index=seq.index,
            token_ids=(token,),
            logprobs=() if logprob is None else (logprob,),
            prompt_logprobs=prompt_logprobs,
            finish_reason=None if stop is None else stop.reason,
            stop_token_id=None if stop is None else stop.stop_token_id,
            num_cached_tokens=seq.num_cached_tokens or 0,
            ticket=None if stop is None else self._roster.gives.ticket(seq),
        )

    def take_commands(self) -> list[Command]:
        """What the transfer thread must be told since the last call, in order."""
        commands = self._roster.commands[:]
        self._roster.commands.clear()
        return commands

    def withdraw(self, transfer_id: str) -> None:
        """Nobody will come for what is given under this id: its blocks come free. A prefill of it goes on."""
        self._roster.gives.give_up(transfer_id)

    def on_event(self, event: Event) -> list[SequenceDelta]:
        """Something happened to a transfer. Events of requests that no longer wait for it are ignored.

        Returns:
            First tokens that landed, or the ends of sequences that failed.

        Raises:
            AssertionError: a pin is settled that is not held.
        """
        self._stalled = False
        match event:
            case Landed():
                return self._land(event)
            case Failed():
                return self._fail(event)
            case Settled():
                self._roster.settle(event.pin)
                return []

    def _land(self, event: Landed) -> list[SequenceDelta]:
        leader = self._roster.takes.end(event.transfer_id)
        if leader is None:
            return []
        assert leader.status is Status.RESERVED, f"transfer {event.transfer_id} landed and reserved nothing"
        first_tokens = {first.index: first for first in event.first_tokens}
        seqs = publish_landed(self._roster, leader)
        sampled = [seq for seq in seqs if _suffices(first_tokens.get(seq.index), seq)]
        unsampled = [seq for seq in seqs if seq not in sampled]
        deltas = [self._adopt(seq, first_tokens[seq.index], leader) for seq in sampled]
        landed = list(zip(sampled, deltas, strict=True))
        going_on = [seq for seq, delta in landed if delta.finish_reason is None]
        settle_landed(self._roster, leader, going_on, unsampled)
        for seq, delta in landed:
            if delta.finish_reason is not None:
                self._end(seq, delta.finish_reason)
        return deltas

    def _adopt(self, seq: Sequence, first: FirstToken, leader: Sequence) -> SequenceDelta:
        seq.adopt(first.token_id)
        seq.num_cached_tokens = leader.num_cached_tokens
        return self._token_delta(seq, first.logprobs if seq.request.params.logprobs is not None else None)

    def _fail(self, event: Failed) -> list[SequenceDelta]:
        leader = self._roster.takes.end(event.transfer_id)
        if leader is None:
            return []
        if event.refused or self._handoff is FailurePolicy.FAIL:
            request_id = leader.request.request_id
            return [replace(delta, error=event.reason) for delta in self.finish(request_id, None, FinishReason.ERROR)]
        self._num_fallbacks += 1
        if leader.status is Status.RESERVED:
            self._roster.unreserve(leader)
            self._roster.enqueue(leader)
        return []

    def has_work(self) -> bool:
        """Whether a sequence is alive or a step is in flight."""
        return bool(self._live) or bool(self._in_flight)

    @property
    def stalled(self) -> bool:
        """Whether another `schedule` is no use before a `commit`, `add`, `finish` or `on_event`."""
        return self._stalled

    def stats(self) -> SchedulerStats:
        """Numbers for logs and metrics."""
        usage = self.cache.usage
        num_running, num_reserved = len(self._roster.running), len(self._roster.reserved)
        alive = sum(seq.status is not Status.FINISHED for seqs in self._live.values() for seq in seqs)
        return SchedulerStats(
            num_running=num_running,
            num_waiting=alive - num_running - num_reserved,
            num_preemptions=self._roster.num_preemptions,
            used_blocks=usage.used,
            total_blocks=usage.total,
            quarantined_blocks=usage.quarantined,
            prefix_query_tokens=self._roster.prefix_query_tokens,
            prefix_hit_tokens=self._roster.prefix_hit_tokens,
            num_reserved=num_reserved,
            pinned_blocks=self._roster.pins.num_blocks,
            num_fallbacks=self._num_fallbacks,
        )

    def check(self, held: Iterable[int] = ()) -> None:
        """Prove that sequences, slots, tables, pool and index agree, and that nothing leaks when idle.

        Args:
            held: blocks that others than sequences and transfers own, once per reference.

        Raises:
            AssertionError: with the numbers.
        """
        self._roster.check()
        owned = [*held, *self._roster.pins.blocks()]
        self.cache.check(owned)
        for request_id, seqs in self._live.items():
            assert any(seq.status is not Status.FINISHED for seq in seqs), f"{request_id} has ended and is still live"
        if not self.has_work():
            assert self.cache.usage.used == len(set(owned)), f"idle, but {self.cache.usage}"


def _suffices(first: FirstToken | None, seq: Sequence) -> bool:
    """Whether the first token came, with all that was asked for; otherwise it is sampled here, to the same effect."""
    return first is not None and (first.logprobs is not None or seq.request.params.logprobs is None)


def _delta(seq: Sequence, reason: FinishReason) -> SequenceDelta:
    return SequenceDelta(
        request_id=seq.request.request_id,
        index=seq.index,
        finish_reason=reason,
        num_cached_tokens=seq.num_cached_tokens or 0,
    )
