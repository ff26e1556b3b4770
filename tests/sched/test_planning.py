"""Which running sequences run, who gives way, and how siblings branch off."""

from baton.core.sampling import Grammar, GrammarKind
from baton.core.step import Step
from tests.sched.driver import Driver, Setup, make_request, step_of


def driver(**sizes: object) -> Driver:
    return Driver(Setup(**{"eos_rate": 0.0, "budget": 64, **sizes}))  # type: ignore[arg-type]


def now(run: Driver) -> Step:
    """Plan a step and commit it."""
    step = step_of(run)
    run.commit()
    run.check()
    return step


def chunks(step: Step) -> list[tuple[int, int, int]]:
    return [(chunk.slot, chunk.start, chunk.num_tokens) for chunk in step.chunks]


def test_decodes_come_first_and_prefills_share_what_is_left() -> None:
    run = driver(budget=6)
    run.add(make_request("long", 14))
    run.add(make_request("short", 2, first=50, priority=-1))
    assert chunks(now(run)) == [(0, 0, 2), (1, 0, 4)]
    assert chunks(now(run)) == [(0, 2, 1), (1, 4, 5)]
    assert chunks(now(run)) == [(0, 3, 1), (1, 9, 5)]
    run.drain()


def test_a_prefill_that_is_first_moves_even_if_decodes_could_take_the_whole_budget() -> None:
    run = driver(budget=2, depth=2)
    for first, request_id in enumerate("ab"):
        run.add(make_request(request_id, 1, first=9 * first, grammar=Grammar(kind=GrammarKind.JSON_OBJECT)))
    step_of(run)
    run.add(make_request("urgent", 5, first=50, priority=-1))
    assert chunks(step_of(run)) == [(2, 0, 2)]  # "a" and "b" wait for their samples
    run.commit()
    assert chunks(step_of(run)) == [(0, 1, 1), (2, 2, 1)]  # one token of the budget is kept from "b"
    run.drain()


def test_budget_one_serves_the_first_only() -> None:
    run = driver(budget=1)
    run.add(make_request("a", 2, max_tokens=2))
    run.add(make_request("b", 2, first=9, max_tokens=2))
    assert [chunks(now(run)) for _ in range(3)] == [[(0, 0, 1)], [(0, 1, 1)], [(0, 2, 1)]]
    assert chunks(now(run)) == [(0, 0, 1)]
    run.drain()


def test_the_last_in_order_gives_way_and_nobody_comes_in_with_its_blocks() -> None:
    run = driver(num_blocks=7, max_model_len=24)
    run.add(make_request("first", 8, max_tokens=9))
    run.add(make_request("second", 8, first=20, max_tokens=9))
    run.add(make_request("last", 11, first=40, max_tokens=9))
    now(run)
    run.add(make_request("new", 1, first=70))
    step = now(run)
    assert run.scheduler.stats().num_preemptions == 1
    assert chunks(step) == [(0, 8, 1), (1, 8, 1)]  # two of the three blocks of "last"
    assert step.admissions == ()
    assert now(run).admissions == ()  # "last" is before "new" and does not fit
    run.drain()


def test_nobody_comes_in_with_the_blocks_of_a_victim_even_if_it_goes_first() -> None:
    run = driver(num_blocks=5, max_model_len=20)
    run.add(make_request("first", 8, max_tokens=9))
    run.add(make_request("last", 11, first=40, priority=2, max_tokens=9))
    now(run)
    run.add(make_request("new", 1, first=70, priority=1))
    step = now(run)
    assert run.scheduler.stats().num_preemptions == 1
    assert (chunks(step), step.admissions) == ([(0, 8, 1)], ())
    assert run.scheduler.cache.usage.free == 2
    assert [a.request.request_id for a in now(run).admissions] == ["new"]
    run.drain()


def test_a_step_of_an_earlier_run_publishes_nothing() -> None:
    run = driver(num_blocks=14, max_model_len=40, budget=12, depth=5)
    run.add(make_request("json", 28, grammar=Grammar(kind=GrammarKind.JSON_OBJECT)))
    step_of(run)
    step_of(run)
    run.add(make_request("first", 7, first=30, priority=-1))
    last = make_request("last", 17, first=50, priority=1)
    run.add(last)
    assert chunks(step_of(run)) == [(0, 24, 4), (1, 0, 7), (2, 0, 1)]
    assert chunks(step_of(run)) == [(1, 7, 1), (2, 1, 11)]
    assert not run.schedule()  # "first" needs a block, so "last" is preempted with a chunk in flight
    for _ in range(3):
        run.commit()
    run.finish("json")  # not in the step that is left: its blocks are free at once
    step = step_of(run)
    assert [a.request.request_id for a in step.admissions] == ["last"]
    assert chunks(step) == [(1, 8, 1), (0, 0, 11)]
    run.commit()
    cache = run.scheduler.cache
    assert cache.find_hit(cache.chain("", 9), last.prompt_token_ids) == []
    run.commit()
    assert len(cache.find_hit(cache.chain("", 9), last.prompt_token_ids)) == 2
    run.drain()


def test_nobody_branches_off_in_a_step_that_took_blocks_away() -> None:
    run = driver(num_blocks=6, max_model_len=24, budget=9)
    run.add(make_request("first", 7, max_tokens=9))
    run.add(make_request("last", 8, first=20, max_tokens=9, priority=1))
    now(run)
    run.add(make_request("r", 8, first=40, n=2, max_tokens=4))
    assert chunks(now(run)) == [(0, 7, 1), (1, 2, 6), (2, 0, 2)]
    step = now(run)  # "first" takes a block of "last"; "r" ends its prompt, and its sibling needs no block
    assert chunks(step) == [(0, 8, 1), (2, 2, 6)]
    assert (len(step.samples), step.admissions) == (2, ())
    assert run.scheduler.stats().num_waiting == 2
    run.drain()


def test_the_one_that_needs_room_gives_way_itself_if_nobody_is_after_it() -> None:
    run = driver(num_blocks=5, max_model_len=20)
    run.add(make_request("first", 9, max_tokens=4))
    run.add(make_request("last", 8, first=20, max_tokens=4))
    now(run)
    step = now(run)
    assert chunks(step) == [(0, 9, 1)]
    assert run.scheduler.stats().num_preemptions == 1
    run.drain()


def test_priority_decides_who_gives_way() -> None:
    run = driver(num_blocks=5, max_model_len=20)
    run.add(make_request("low", 9, priority=1, max_tokens=4))
    now(run)
    run.add(make_request("high", 8, first=20, max_tokens=4))
    now(run)
    step = now(run)  # "high" arrived later and needs a block
    assert [run.requests[name].priority for name, _ in run.owners(step)] == [0]
    assert run.scheduler.stats().num_preemptions == 1
    run.drain()


def test_blocks_that_come_free_soon_are_waited_for() -> None:
    run = driver(num_blocks=5, max_model_len=20, depth=2)
    run.add(make_request("a", 7, max_tokens=9))
    run.add(make_request("b", 7, first=20, max_tokens=9))
    run.add(make_request("gone", 3, first=40, max_tokens=9))
    step_of(run)
    step_of(run)  # "a" and "b" are at the end of their blocks, "gone" too
    run.commit()
    run.finish("gone")  # its block is still used by the queued step
    # "a" waits for it; "b" must not be preempted for it, nor run ahead of "a" into it.
    assert not run.schedule()
    assert run.scheduler.stats().num_preemptions == 0
    run.commit()
    step = step_of(run)
    assert chunks(step)[0] == (0, 8, 1)
    run.drain()


def test_a_constrained_sequence_is_not_planned_ahead_of_its_sample() -> None:
    run = driver(depth=2)
    run.add(make_request("json", 3, grammar=Grammar(kind=GrammarKind.JSON_OBJECT)))
    run.add(make_request("free", 3, first=20))
    assert len(step_of(run).chunks) == 2
    assert chunks(step_of(run)) == [(1, 3, 1)]
    run.commit()
    assert chunks(step_of(run)) == [(0, 3, 1), (1, 4, 1)]
    run.drain()


def test_siblings_branch_off_the_last_prompt_chunk() -> None:
    run = driver(budget=6)
    run.add(make_request("r", 9, n=3, max_tokens=4))
    assert now(run).samples == ()
    step = step_of(run)
    assert chunks(step) == [(0, 6, 3)]
    assert [(s.chunk, s.slot, s.position, s.num_output_tokens) for s in step.samples] == [
        (0, slot, 9, 0) for slot in range(3)
    ]
    assert [(a.slot, a.index, a.block_ids) for a in step.admissions] == [(1, 1, (0, 1, 3)), (2, 2, (0, 1, 4))]
    assert step.copies == ((2, 3), (2, 4))
    run.commit()
    assert len({tuple(outcome.tokens) for outcome in run.outcomes.values()}) == 3
    assert [(c.slot, c.start, c.num_tokens) for c in step_of(run).chunks] == [(0, 9, 1), (1, 9, 1), (2, 9, 1)]
    run.drain()


def test_siblings_at_a_block_edge_copy_nothing() -> None:
    run = driver()
    run.add(make_request("r", 8, n=2, max_tokens=4))
    step = step_of(run)
    assert step.copies == ()
    assert step.admissions[1].block_ids == (0, 1)
    run.drain()


def test_siblings_without_a_slot_prefill_later_by_prefix_hit() -> None:
    run = driver(max_num_seqs=2)
    run.add(make_request("r", 9, n=3, max_tokens=2))
    assert len(now(run).samples) == 2
    assert run.scheduler.stats().num_waiting == 1
    now(run)
    assert chunks(now(run)) == [(0, 8, 1)]
    run.drain()


def test_siblings_share_their_prompt_without_prefix_caching_too() -> None:
    run = driver(max_num_seqs=1, caching=False)
    run.add(make_request("r", 9, n=2, max_tokens=1))
    now(run)
    assert chunks(now(run)) == [(0, 8, 1)]
    run.drain()


def test_siblings_without_a_block_for_their_tail_wait() -> None:
    run = driver(num_blocks=4, max_model_len=16)
    run.add(make_request("r", 9, n=3, max_tokens=3))
    step = now(run)
    assert [a.index for a in step.admissions] == [0, 1]
    assert run.scheduler.stats().num_waiting == 1
    run.drain()


def test_a_sibling_takes_over_when_the_first_is_aborted_in_its_prefill() -> None:
    run = driver(budget=4)
    run.add(make_request("r", 9, n=3, max_tokens=2))
    now(run)
    run.finish("r", 0)
    run.finish("r", 2)
    step = now(run)
    assert [(a.index, chunk.start) for a, chunk in zip(step.admissions, step.chunks, strict=True)] == [(1, 4)]
    run.drain()


def test_prompt_logprobs_are_asked_of_chunks_that_a_prompt_token_follows() -> None:
    run = driver(budget=4)
    run.add(make_request("r", 5, max_tokens=3, prompt_logprobs=2))
    assert [now(run).chunks[0].prompt_logprobs for _ in range(3)] == [2, None, None]
    run.drain()


def test_prompt_logprobs_start_again_after_a_preemption_in_prefill() -> None:
    run = driver(num_blocks=5, max_model_len=20, budget=4, depth=2)
    run.add(make_request("first", 4, max_tokens=12))
    run.add(make_request("asks", 12, first=20, max_tokens=2, prompt_logprobs=0))
    step_of(run)  # first: 4 tokens
    step_of(run)  # first decodes and takes a block; asks: 3 of 12 tokens, its blocks are the rest
    for _ in range(8):
        run.commit()
        run.schedule()
    assert run.scheduler.stats().num_preemptions >= 1
    run.drain()  # the driver checks the delivered list
    assert run.outcomes["asks", 0].tokens != []


def test_the_first_in_order_moves_in_every_step_whatever_arrives() -> None:
    run = driver(num_blocks=8, budget=5)
    run.add(make_request("old", 7, max_tokens=20))
    for number in range(21):  # two steps of prefill, the second samples; then 19 decodes
        run.add(make_request(f"new{number}", 3 + number % 5, first=40 * number, max_tokens=20))
        assert run.outcomes["old", 0].reason is None
        now(run)
    assert len(run.outcomes["old", 0].tokens) == 20
    assert run.outcomes["old", 0].reason is not None
    assert run.scheduler.stats().num_preemptions > 0
    run.drain()
