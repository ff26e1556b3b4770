"""Who comes in, and when."""

from baton.core.step import Step
from tests.sched.driver import Driver, Setup, make_request, step_of


def driver(**sizes: object) -> Driver:
    return Driver(Setup(**{"eos_rate": 0.0, **sizes}))  # type: ignore[arg-type]


def admitted(step: Step) -> list[str]:
    return [admission.request.request_id for admission in step.admissions]


def test_priority_then_arrival() -> None:
    run = driver(max_num_seqs=2)
    for request_id, priority in (("late", 1), ("b", 0), ("a", -1)):
        run.add(make_request(request_id, 3, priority=priority))
    assert admitted(step_of(run)) == ["a", "b"]


def test_nobody_overtakes_a_large_one_that_does_not_fit() -> None:
    run = driver(num_blocks=8, budget=64)
    run.add(make_request("running", 20))
    run.add(make_request("large", 16, first=50))
    run.add(make_request("small", 2, first=90))
    assert admitted(step_of(run)) == ["running"]
    run.commit()
    assert admitted(step_of(run)) == []
    run.finish("running")
    run.commit()
    assert admitted(step_of(run)) == ["large", "small"]
    run.drain()


def test_a_prompt_gets_all_its_blocks_at_once_and_its_tokens_by_the_budget() -> None:
    run = driver(budget=8)
    run.add(make_request("a", 18))
    step = step_of(run)
    assert step.admissions[0].block_ids == (0, 1, 2, 3, 4)
    assert [(chunk.start, chunk.num_tokens) for chunk in step.chunks] == [(0, 8)]


def test_no_admission_without_budget_or_slot() -> None:
    run = driver(budget=8, max_num_seqs=2)
    run.add(make_request("a", 8))
    run.add(make_request("b", 4, first=50))
    run.add(make_request("c", 4, first=90))
    assert admitted(step_of(run)) == ["a"]
    run.commit()
    assert admitted(step_of(run)) == ["b"]
    run.commit()
    assert admitted(step_of(run)) == []
    run.drain()


def test_a_hit_lets_in_what_would_not_fit_alone() -> None:
    run = driver(num_blocks=8, budget=64, max_model_len=32)
    run.add(make_request("a", 20, max_tokens=8))
    step_of(run)
    run.commit()
    run.add(make_request("b", 21, max_tokens=2))  # 6 blocks, 5 of them shared; 3 are free
    step = step_of(run)
    assert admitted(step) == ["b"]
    assert [(chunk.start, chunk.num_tokens) for chunk in step.chunks] == [(20, 1), (20, 1)]
    run.drain()


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    run = driver(budget=64)
    run.add(make_request("a", 9, max_tokens=1))
    step_of(run)
    run.commit()
    run.add(make_request("b", 9, max_tokens=2, prompt_logprobs=1))
    run.add(make_request("c", 9, max_tokens=2))
    step = step_of(run)
    assert [(chunk.start, chunk.prompt_logprobs) for chunk in step.chunks] == [(0, 1), (8, None)]
    run.drain()  # the driver checks the delivered list


def test_a_preempted_sequence_waits_for_its_tokens_in_flight_and_resumes_with_them() -> None:
    run = driver(num_blocks=4, max_model_len=16, budget=64, depth=3)
    run.add(make_request("a", 7, max_tokens=3))
    run.add(make_request("b", 7, first=20, max_tokens=5))
    step_of(run)  # both prefill and sample, two blocks each
    step_of(run)  # both decode at position 7: the tables are full
    # "a" needs a third block: "b" is preempted with two tokens in flight, and its blocks are still in use.
    assert not run.schedule()
    assert run.scheduler.stats().num_preemptions == 1
    run.finish("a")
    assert not run.schedule()  # nothing else to do, but "b" does not know its tokens yet
    run.commit()
    assert not run.schedule()  # one known, one in flight
    run.commit()
    step = step_of(run)
    (admission,) = step.admissions
    assert admission.token_ids[:7] == tuple(range(20, 27))
    assert list(admission.token_ids[7:]) == run.outcomes["b", 0].tokens
    assert len(admission.token_ids) == 9
    assert step.chunks[0].start == 0  # its steps ended after it had lost its blocks: nothing was published
    assert step.samples[0].num_output_tokens == 2
    run.drain()


def test_a_preempted_sequence_finds_its_blocks_again() -> None:
    run = driver(num_blocks=5, max_model_len=20, budget=64)
    run.add(make_request("a", 8, max_tokens=9))
    run.add(make_request("b", 8, first=20, max_tokens=3))
    step_of(run)
    run.commit()
    step = step_of(run)  # "a" takes the last block, "b" has to give way to itself
    assert run.scheduler.stats().num_preemptions == 1
    assert len(step.chunks) == 1
    run.finish("a")
    run.commit()
    step = step_of(run)
    assert admitted(step) == ["b"]
    assert (step.chunks[0].start, step.chunks[0].num_tokens) == (8, 1)
    run.drain()
    assert run.outcomes["b", 0].num_cached == {0}  # that of the first admission
