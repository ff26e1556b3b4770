"""The scheduler from outside: what it refuses, what a step carries, what a commit returns, what an end leaves."""

from dataclasses import replace

import pytest

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import ConfigError, RequestError
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats
from baton.core.step import Admission, Chunk, SampleRow, Step, StepResult
from baton.sched.scheduler import Scheduler


def make(
    *, num_blocks: int = 16, max_num_seqs: int = 4, budget: int = 8, max_model_len: int = 32, caching: bool = True
) -> Scheduler:
    cache = CacheManager(CacheConfig(block_tokens=4, num_blocks=num_blocks, enable_prefix_caching=caching))
    limits = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=max_model_len)
    return Scheduler(limits, cache)


def request(request_id: str = "r", prompt: int = 6, eos: frozenset[int] = frozenset(), **params: object) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(range(100, 100 + prompt)),
        params=SamplingParams(**params),  # type: ignore[arg-type]
        eos_token_ids=eos,
    )


def planned(scheduler: Scheduler) -> Step:
    step = scheduler.schedule()
    assert step is not None
    return step


def commit(scheduler: Scheduler, step: Step, *tokens: int) -> list[SequenceDelta]:
    assert len(tokens) == len(step.samples)
    result = StepResult(
        number=step.number,
        token_ids=tokens,
        logprobs=(None,) * len(tokens),
        prompt_logprobs=((),) * len(step.chunks),
    )
    deltas = scheduler.commit(step, result)
    scheduler.check()
    return deltas


def test_a_pool_smaller_than_one_sequence_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"holds 28 tokens, fewer than max_model_len=32"):
        make(num_blocks=7)


@pytest.mark.parametrize(
    ("bad", "param", "message"),
    [
        (request(prompt=0), "prompt", "at least one token"),
        (request(prompt=32), "prompt", "prompt has 32 tokens; at most 31 fit, for max_model_len=32"),
        (request("live"), "request_id", "'live' is already in use"),
        (replace(request(max_tokens=2), resumed=(7, 8)), "resume_token_ids", "hold the end already"),
        (replace(request(stop_token_ids=(8,)), resumed=(7, 8)), "resume_token_ids", "hold the end already"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(bad: Request, param: str, message: str) -> None:
    scheduler = make()
    scheduler.add(request("live"))
    with pytest.raises(RequestError, match=message) as error:
        scheduler.add(bad)
    assert error.value.param == param
    assert scheduler.stats().num_waiting == 1


def test_a_resumed_sequence_begins_with_its_outputs_as_after_a_preemption() -> None:
    scheduler = make(budget=16)
    asked = replace(request(max_tokens=4), resumed=(7, 8))
    scheduler.add(asked)
    step = planned(scheduler)
    tokens = (*asked.prompt_token_ids, 7, 8)
    assert step == Step(
        number=0,
        admissions=(Admission(slot=0, request=asked, index=0, token_ids=tokens, block_ids=(0, 1)),),
        chunks=(Chunk(slot=0, start=0, num_tokens=8),),
        samples=(SampleRow(chunk=0, slot=0, position=8, num_output_tokens=2),),
    )
    assert commit(scheduler, step, 9) == [SequenceDelta(request_id="r", index=0, token_ids=(9,))]
    (last,) = commit(scheduler, planned(scheduler), 10)
    assert last.finish_reason is FinishReason.LENGTH and not scheduler.has_work()


def test_cached_tokens_of_a_resumed_sequence_are_the_prompts() -> None:
    scheduler = make()
    scheduler.add(request("first", prompt=6, max_tokens=8))
    while (step := scheduler.schedule()) is not None:
        commit(scheduler, step, *(7,) * len(step.samples))
    scheduler.add(replace(request("again", prompt=6, max_tokens=8), resumed=(7,) * 6))  # 12 tokens, 8 in full blocks
    (delta,) = commit(scheduler, planned(scheduler), 7)
    assert delta.num_cached_tokens == 6 and scheduler.stats().prefix_hit_tokens == 8


def test_steps_carry_only_what_changed() -> None:
    scheduler = make(budget=5)
    asked = request(max_tokens=4)
    scheduler.add(asked)
    first = planned(scheduler)
    assert first == Step(
        number=0,
        admissions=(Admission(slot=0, request=asked, index=0, token_ids=asked.prompt_token_ids, block_ids=(0, 1)),),
        chunks=(Chunk(slot=0, start=0, num_tokens=5),),
    )
    assert commit(scheduler, first) == []
    second = planned(scheduler)
    assert second == Step(
        number=1,
        chunks=(Chunk(slot=0, start=5, num_tokens=1),),
        samples=(SampleRow(chunk=0, slot=0, position=6, num_output_tokens=0),),
    )
    assert commit(scheduler, second, 7) == [SequenceDelta(request_id="r", index=0, token_ids=(7,))]
    commit(scheduler, planned(scheduler), 8)
    commit(scheduler, planned(scheduler), 9)
    # Token 9 sits at position 8, the first of a third block.
    fourth = planned(scheduler)
    assert fourth.chunks == (Chunk(slot=0, start=8, num_tokens=1, first_new_block=2, new_block_ids=(2,)),)
    assert commit(scheduler, fourth, 10) == [
        SequenceDelta(request_id="r", index=0, token_ids=(10,), finish_reason=FinishReason.LENGTH)
    ]
    assert scheduler.schedule() is None
    assert not scheduler.has_work()


def test_stop_tokens_end_the_sequence_and_are_reported() -> None:
    scheduler = make()
    scheduler.add(request("eos", eos=frozenset({2})))
    scheduler.add(request("stop", prompt=2, stop_token_ids=(5,)))
    deltas = commit(scheduler, planned(scheduler), 2, 5)
    assert [(d.request_id, d.token_ids, d.finish_reason, d.stop_token_id) for d in deltas] == [
        ("eos", (2,), FinishReason.STOP, None),
        ("stop", (5,), FinishReason.STOP, 5),
    ]
    assert not scheduler.has_work()


def test_max_model_len_ends_a_sequence_without_max_tokens() -> None:
    scheduler = make(max_model_len=8)
    scheduler.add(request(prompt=6, max_tokens=None))
    assert commit(scheduler, planned(scheduler), 1)[0].finish_reason is None
    assert commit(scheduler, planned(scheduler), 1)[0].finish_reason is FinishReason.LENGTH


def test_steps_are_planned_ahead_up_to_the_limit_and_late_tokens_dropped() -> None:
    scheduler = make()
    scheduler.add(request(prompt=6, max_tokens=3, eos=frozenset({2})))
    steps = [planned(scheduler) for _ in range(3)]
    assert [step.chunks[0].start for step in steps] == [0, 6, 7]
    assert [step.samples[0].num_output_tokens for step in steps] == [0, 1, 2]
    assert scheduler.schedule() is None
    assert commit(scheduler, steps[0], 2)[0].finish_reason is FinishReason.STOP
    assert scheduler.has_work()
    assert scheduler.stats().quarantined_blocks == 2
    assert commit(scheduler, steps[1], 50) == []
    assert scheduler.stats().quarantined_blocks == 2
    assert commit(scheduler, steps[2], 51) == []
    assert scheduler.stats().used_blocks == 0
    assert not scheduler.has_work()


def test_steps_are_committed_in_order() -> None:
    scheduler = make()
    scheduler.add(request())
    planned(scheduler)
    second = planned(scheduler)
    with pytest.raises(AssertionError):
        commit(scheduler, second, 1)


def test_abort_while_a_step_is_in_flight() -> None:
    scheduler = make()
    scheduler.add(request())
    step = planned(scheduler)
    assert scheduler.finish("r") == [SequenceDelta(request_id="r", index=0, finish_reason=FinishReason.ABORT)]
    assert scheduler.finish("r") == []
    scheduler.check()
    scheduler.add(request())  # the id is free again
    assert commit(scheduler, step, 9) == []
    again = planned(scheduler)
    assert commit(scheduler, again, 8)[0].token_ids == (8,)


def test_finish_ends_one_sequence_for_the_reason_given() -> None:
    scheduler = make()
    scheduler.add(request(n=2))
    commit(scheduler, planned(scheduler), 1, 2)
    assert scheduler.finish("r", 1, FinishReason.STOP) == [
        SequenceDelta(request_id="r", index=1, finish_reason=FinishReason.STOP)
    ]
    assert [d.index for d in commit(scheduler, planned(scheduler), 3)] == [0]


@pytest.mark.parametrize("index", [None, 0, 7])
def test_unknown_ids_are_ignored(index: int | None) -> None:
    scheduler = make()
    assert scheduler.finish("nobody", index) == []
    scheduler.add(request())
    assert scheduler.finish("r", 7) == []


def test_abort_while_waiting() -> None:
    scheduler = make()
    scheduler.add(request(n=3))
    assert [delta.index for delta in scheduler.finish("r")] == [0, 1, 2]
    assert scheduler.schedule() is None
    assert not scheduler.has_work()
    scheduler.check()


@pytest.mark.parametrize(("caching", "cached"), [(True, 4), (False, 0)])
def test_cached_tokens_are_those_of_the_prompt_found_at_admission(caching: bool, cached: int) -> None:
    scheduler = make(caching=caching)
    for request_id in ("first", "second"):
        scheduler.add(request(request_id, max_tokens=1))
        step = planned(scheduler)
        (delta,) = commit(scheduler, step, 1)
    assert delta.num_cached_tokens == cached
    assert step.chunks[0].start == cached
    stats = scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (12, cached)


def test_stats() -> None:
    scheduler = make(max_num_seqs=1)
    scheduler.add(request("a"))
    scheduler.add(request("b", n=2))
    planned(scheduler)
    assert scheduler.stats() == SchedulerStats(
        num_running=1,
        num_waiting=2,
        num_preemptions=0,
        used_blocks=2,
        total_blocks=16,
        quarantined_blocks=0,
        prefix_query_tokens=6,
        prefix_hit_tokens=0,
    )


def test_a_failed_sample_ends_its_sequence_in_an_error_and_no_other() -> None:
    scheduler = make()
    scheduler.add(request("bad", prompt=3))
    scheduler.add(request("good", prompt=3))
    step = planned(scheduler)
    result = StepResult(
        number=step.number,
        token_ids=(1, 2),
        logprobs=(None, None),
        prompt_logprobs=((), ()),
        failed=frozenset({0}),
    )
    bad, good = scheduler.commit(step, result)
    assert (bad.request_id, bad.token_ids, bad.finish_reason) == ("bad", (), FinishReason.ERROR)
    assert (good.request_id, good.token_ids, good.finish_reason) == ("good", (2,), None)
    scheduler.check()
    assert scheduler.stats().num_running == 1
