"""The runner without a model is deterministic, and loud about every kind of wrong step."""

from dataclasses import replace

import pytest

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.step import Admission, Chunk, SampleRow, Step
from baton.engine.stub_runner import StubRunner, mix

PROMPT = (5, 6, 7, 8, 9)


def request(salt: str = "", **params: object) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=PROMPT,
        params=SamplingParams(**{"seed": 1, **params}),  # type: ignore[arg-type]
        cache_salt=salt,
        eos_token_ids=frozenset({2, 4}),
    )


def prefill(asked: Request, *, slot: int = 0, blocks: tuple[int, ...] = (0, 1, 2), start: int = 0) -> Step:
    return Step(
        number=0,
        admissions=(Admission(slot=slot, request=asked, index=0, token_ids=PROMPT, block_ids=blocks),),
        chunks=(Chunk(slot=slot, start=start, num_tokens=5 - start),),
        samples=(SampleRow(chunk=0, slot=slot, position=5, num_output_tokens=0),),
    )


def decode(position: int, slot: int = 0) -> Step:
    return Step(
        number=1,
        chunks=(Chunk(slot=slot, start=position, num_tokens=1),),
        samples=(SampleRow(chunk=0, slot=slot, position=position + 1, num_output_tokens=position - 4),),
    )


def test_mix_is_the_same_in_every_process() -> None:
    assert mix(1, 2, 3) == mix(1, 2, 3)
    assert len({mix(a, b) for a in range(100) for b in range(100)}) == 10_000


def test_steps_yield_the_continuation() -> None:
    runner = StubRunner(2, 100)
    tokens = [runner.execute(step).token_ids[0] for step in (prefill(request()), decode(5))]
    assert tokens == runner.continuation(request(), 0, 2)


@pytest.mark.parametrize("other", [(request(seed=2), 0), (request(), 1)])
def test_seed_and_index_change_the_tokens(other: tuple[Request, int]) -> None:
    runner = StubRunner(2, 1_000_000)
    assert runner.continuation(*other, 3) != runner.continuation(request(), 0, 3)


def test_the_salt_separates_the_cache_and_not_the_tokens() -> None:
    runner = StubRunner(2, 100)
    assert runner.continuation(request("a"), 0, 4) == runner.continuation(request("b"), 0, 4)
    runner.execute(prefill(request("a")))
    with pytest.raises(AssertionError, match="another salt"):
        runner.execute(prefill(request("b"), slot=1, blocks=(0, 1, 3), start=4))


def test_eos_comes_at_the_asked_rate_and_not_before_min_tokens() -> None:
    always = StubRunner(2, 100, eos_rate=1.0)
    assert always.continuation(request(min_tokens=3), 0, 5)[3:] == [2, 2]
    assert 2 not in always.continuation(request(min_tokens=3), 0, 3)
    tokens = StubRunner(2, 10**9, eos_rate=0.25).continuation(request(), 0, 4000)
    # Binomial(4000, 1/4): standard deviation 27.
    assert abs(tokens.count(2) - 1000) < 5 * 27


def test_a_prefix_hit_reads_what_the_first_one_wrote() -> None:
    runner = StubRunner(2, 100)
    first = runner.execute(prefill(request()))
    second = runner.execute(prefill(request(), slot=1, blocks=(0, 1, 3), start=4))
    assert first.token_ids == second.token_ids


def test_a_fork_needs_its_copy() -> None:
    fork = prefill(request())
    fork = replace(
        fork,
        admissions=(
            *fork.admissions,
            Admission(slot=1, request=request(), index=1, token_ids=PROMPT, block_ids=(0, 1, 3)),
        ),
        samples=(*fork.samples, SampleRow(chunk=0, slot=1, position=5, num_output_tokens=0)),
    )
    runner = StubRunner(2, 100)
    result = runner.execute(replace(fork, copies=((2, 3),)))
    assert result.token_ids[1] == runner.continuation(request(), 1, 1)[0]
    assert runner.execute(decode(5, slot=1)).token_ids[0] == runner.continuation(request(), 1, 2)[1]
    without = StubRunner(2, 100)
    without.execute(fork)
    with pytest.raises(AssertionError, match="block 3 holds"):
        without.execute(decode(5, slot=1))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (prefill(request(), start=2), "block 0 holds"),  # nobody wrote the hit
        (prefill(request(), blocks=(0, 1)), "block_ids"),  # too few blocks
        (prefill(request(), blocks=(0, 1, 0)), "a block twice"),
        (replace(prefill(request()), chunks=(Chunk(slot=0, start=0, num_tokens=6),)), "runs past the 5 tokens"),
        (replace(prefill(request()), chunks=(Chunk(slot=0, start=0, num_tokens=4),)), "position=5"),
        (
            replace(
                prefill(request()),
                chunks=(Chunk(slot=0, start=0, num_tokens=5, first_new_block=2, new_block_ids=(9,)),),
            ),
            "table of 3",
        ),
    ],
)
def test_wrong_steps_are_loud(step: Step, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        StubRunner(2, 100).execute(step)


def test_a_block_overwritten_by_another_is_loud() -> None:
    runner = StubRunner(2, 100)
    runner.execute(prefill(request()))
    runner.write_block(1, [0, 0])
    with pytest.raises(AssertionError, match="block 1 holds"):
        runner.execute(decode(5))


def test_a_decode_of_a_token_that_was_never_sampled_is_loud() -> None:
    runner = StubRunner(2, 100)
    runner.execute(prefill(request()))
    with pytest.raises(AssertionError, match="runs past the 6 tokens"):
        runner.execute(decode(6))


def test_logprobs_come_only_when_asked_for() -> None:
    runner = StubRunner(2, 100)
    assert runner.execute(prefill(request())).logprobs == (None,)
    asked = replace(prefill(request(logprobs=1)), chunks=(Chunk(slot=0, start=0, num_tokens=5, prompt_logprobs=1),))
    result = runner.execute(asked)
    assert [entry.token_id for entry in result.prompt_logprobs[0]] == list(PROMPT[1:])
    assert result.logprobs[0] is not None and result.logprobs[0].token_id == result.token_ids[0]


def test_tokens_cross_to_a_runner_with_other_blocks() -> None:
    """Prefill in blocks of 2, decode in blocks of 4: what it reads is checked against its own prefixes."""
    giver, taker = StubRunner(2, 100), StubRunner(4, 100)
    first = giver.execute(prefill(request("salt"))).token_ids[0]
    taker.poison((7, 3))
    values, salt = giver.read_tokens((0, 1, 2), 0, 5)
    taker.write_tokens((7, 3), 0, values[:4], salt)
    assert taker.count_poisoned((7, 3), 0, 5) == 1
    taker.write_tokens((7, 3), 4, values[4:], salt)
    assert (taker.count_poisoned((7, 3), 0, 5), taker.count_poisoned((7, 3), 0, 8)) == (0, 3)
    landed = Step(
        number=0,
        admissions=(Admission(slot=0, request=request("salt"), index=0, token_ids=(*PROMPT, first), block_ids=(7, 3)),),
        chunks=(Chunk(slot=0, start=5, num_tokens=1),),
        samples=(SampleRow(chunk=0, slot=0, position=6, num_output_tokens=1),),
    )
    assert [first, *taker.execute(landed).token_ids] == taker.continuation(request("salt"), 0, 2)
