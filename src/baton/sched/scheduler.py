"""Plans steps and takes their results: `schedule() -> Step`, `commit(step, result) -> deltas`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count

from baton.cache.manager import CacheManager
from baton.core.config import SchedulerConfig
from baton.core.errors import ConfigError, RequestError
from baton.core.request import FinishReason, Request, SequenceDelta, TokenLogprobs
from baton.core.stats import SchedulerStats
from baton.core.step import Step, StepResult
from baton.sched.admission import admit_waiting
from baton.sched.draft import Planned, StepDraft
from baton.sched.planning import plan_decodes, plan_prefills
from baton.sched.roster import Roster
from baton.sched.sequence import Sequence
from baton.sched.status import Status
from baton.sched.stops import stop_after, token_limit


class Scheduler:
    """Continuous batching over one cache. Pure: the caller runs the steps, in order, and brings the results, in order.

    `schedule` may run ahead of `commit` by any number of steps. A step counts as complete at its `commit`, so that
    must not be called before the step's forward pass and copies have ended on the device.

    Raises:
        ConfigError: the cache cannot hold one sequence of max_model_len.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheManager) -> None:
        pool_tokens = cache.config.num_blocks * cache.block_tokens
        if pool_tokens < config.max_model_len:
            raise ConfigError(
                f"the KV cache holds {pool_tokens} tokens, fewer than max_model_len={config.max_model_len}: "
                "enlarge the cache or lower max_model_len"
            )
        self.config = config
        self.cache = cache
        self._roster = Roster(config.max_num_seqs, cache)
        self._live: dict[str, list[Sequence]] = {}
        self._in_flight: deque[StepDraft] = deque()
        self._arrivals = count()
        self._keys = count()
        self._next_step = 0

    def add(self, request: Request) -> None:
        """Queue the n sequences of a request.

        Raises:
            RequestError: empty or too long prompt, or a request_id that is in use.
        """
        self._validate(request)
        arrival = next(self._arrivals)
        seqs = [self._sequence(request, index, arrival) for index in range(request.params.n)]
        self._live[request.request_id] = seqs
        seqs[0].forks = seqs[1:]
        self._roster.enqueue(seqs[0])

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

    def _sequence(self, request: Request, index: int, arrival: int) -> Sequence:
        return Sequence(
            request=request,
            index=index,
            key=next(self._keys),
            order=(request.priority, arrival, index),
            chain=self.cache.chain(request.cache_salt, arrival),
            limit=token_limit(request, self.config.max_model_len),
            tokens=list(request.prompt_token_ids),
        )

    def finish(
        self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT
    ) -> list[SequenceDelta]:
        """End one sequence of a request, or all, in whatever state they are. Unknown or ended ones are ignored.

        Returns:
            The last delta of each sequence ended here; tokens of theirs still in flight are dropped.
        """
        seqs = self._live.get(request_id, [])
        # Siblings before the leader, so that its forks are not queued only to be ended.
        chosen = [seq for seq in reversed(seqs) if index in (None, seq.index) and seq.status is not Status.FINISHED]
        deltas = []
        for seq in chosen:
            self._end(seq)
            deltas.append(_delta(seq, reason))
        return deltas[::-1]

    def _end(self, seq: Sequence) -> None:
        self._roster.finish(seq)
        heirs, seq.forks = seq.live_forks, []
        if heirs:
            heirs[0].forks = heirs[1:]
            self._roster.enqueue(heirs[0])
        seqs = self._live[seq.request.request_id]
        if all(sibling.status is Status.FINISHED for sibling in seqs):
            del self._live[seq.request.request_id]

    def schedule(self) -> Step | None:
        """Plan the next step; None if nothing can run before a step in flight is committed, or there is no work."""
        draft = StepDraft(self._next_step, self.config.max_num_batched_tokens)
        plan_decodes(draft, self._roster)
        plan_prefills(draft, self._roster)
        admit_waiting(draft, self._roster)
        if not draft.chunks:
            return None
        for planned in (*draft.planned_chunks, *draft.planned_samples):
            self.cache.touch(planned.seq.key, draft.number)
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
                self._end(planned.seq)
                deltas.append(_delta(planned.seq, FinishReason.ERROR))
            else:
                deltas.append(self._commit_token(planned, token, logprob))
        return deltas

    def _commit_computed(self, planned: Planned) -> None:
        seq = planned.seq
        if seq.commit(planned.run, planned.num_tokens):
            self.cache.publish(seq.key, seq.tokens, planned.num_tokens)

    def _commit_token(self, planned: Planned, token: int, logprob: TokenLogprobs | None) -> SequenceDelta:
        seq = planned.seq
        is_first = seq.num_output_tokens == 0
        seq.append(token)
        stop = stop_after(seq.request, token, seq.num_output_tokens, seq.limit)
        if stop is not None:
            self._end(seq)
        return SequenceDelta(
            request_id=seq.request.request_id,
            index=seq.index,
            token_ids=(token,),
            logprobs=() if logprob is None else (logprob,),
            prompt_logprobs=tuple(planned.gathered) if is_first else (),
            finish_reason=None if stop is None else stop.reason,
            stop_token_id=None if stop is None else stop.stop_token_id,
            num_cached_tokens=seq.num_cached_tokens or 0,
        )

    def has_work(self) -> bool:
        """Whether a sequence is alive or a step is in flight."""
        return bool(self._live) or bool(self._in_flight)

    def stats(self) -> SchedulerStats:
        """Numbers for logs and metrics."""
        usage = self.cache.usage
        num_running = len(self._roster.running)
        alive = sum(seq.status is not Status.FINISHED for seqs in self._live.values() for seq in seqs)
        return SchedulerStats(
            num_running=num_running,
            num_waiting=alive - num_running,
            num_preemptions=self._roster.num_preemptions,
            used_blocks=usage.used,
            total_blocks=usage.total,
            quarantined_blocks=usage.quarantined,
            prefix_query_tokens=self._roster.prefix_query_tokens,
            prefix_hit_tokens=self._roster.prefix_hit_tokens,
        )

    def check(self, held: Iterable[int] = ()) -> None:
        """Prove that sequences, slots, tables, pool and index agree, and that nothing leaks when idle.

        Args:
            held: blocks that others than sequences own, once per reference.

        Raises:
            AssertionError: with the numbers.
        """
        self._roster.check()
        owned = list(held)
        self.cache.check(owned)
        for request_id, seqs in self._live.items():
            assert any(seq.status is not Status.FINISHED for seq in seqs), f"{request_id} has ended and is still live"
        if not self.has_work():
            assert self.cache.usage.used == len(set(owned)), f"idle, but {self.cache.usage}"


def _delta(seq: Sequence, reason: FinishReason) -> SequenceDelta:
    return SequenceDelta(
        request_id=seq.request.request_id,
        index=seq.index,
        finish_reason=reason,
        num_cached_tokens=seq.num_cached_tokens or 0,
    )
