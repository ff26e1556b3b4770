"""The counts of a sequence through plan, commit, preemption and fork."""

import pytest

from baton.cache.prefix import PrefixChain
from baton.core.request import Request
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.sched.sequence import NO_SLOT, Sequence
from baton.sched.status import Status


def sequence(prompt: int = 6, limit: int = 20, **params: object) -> Sequence:
    tokens = tuple(range(prompt))
    return Sequence(
        request=Request(request_id="r", prompt_token_ids=tokens, params=SamplingParams(**params)),  # type: ignore[arg-type]
        index=0,
        key=0,
        order=(0, 0, 0),
        chain=PrefixChain(b"", 4),
        limit=limit,
        tokens=list(tokens),
    )


def test_prefill_in_chunks_samples_at_its_end_only() -> None:
    seq = sequence(prompt=6)
    seq.start(slot=0, num_hit_tokens=2)
    assert (seq.in_prefill, seq.can_decode, seq.num_unplanned_tokens) == (True, False, 4)
    assert not seq.plan(3)
    assert seq.plan(1)
    assert (seq.in_prefill, seq.num_in_flight, seq.num_expected_tokens, seq.has_output) == (False, 1, 7, True)


def test_decodes_run_ahead_of_their_tokens() -> None:
    seq = sequence(prompt=2)
    seq.start(slot=0, num_hit_tokens=0)
    assert [seq.plan(2), seq.plan(1), seq.plan(1)] == [True, True, True]
    assert (seq.num_planned_tokens, seq.num_in_flight) == (4, 3)
    seq.append(50)
    assert (seq.tokens[-1], seq.num_output_tokens, seq.num_in_flight, seq.num_expected_tokens) == (50, 1, 2, 5)
    seq.check()


def test_it_never_runs_past_its_limit() -> None:
    seq = sequence(prompt=2, limit=4)
    seq.start(slot=0, num_hit_tokens=0)
    seq.plan(2)
    assert seq.can_decode
    seq.plan(1)
    assert not seq.can_decode  # token 4 is in flight


def test_a_constrained_sequence_waits_for_its_sample() -> None:
    seq = sequence(prompt=2, grammar=Grammar(kind=GrammarKind.JSON_OBJECT))
    seq.start(slot=0, num_hit_tokens=0)
    seq.plan(2)
    assert not seq.can_decode
    seq.append(5)
    assert seq.can_decode


def test_preemption_forgets_the_cache_and_keeps_what_is_in_flight() -> None:
    seq = sequence(prompt=2)
    seq.start(slot=3, num_hit_tokens=0)
    seq.plan(2)
    old_list, old_run = seq.gathered, seq.run
    seq.preempt()
    assert (seq.status, seq.slot, seq.num_planned_tokens, seq.num_in_flight) == (Status.PREEMPTED, NO_SLOT, 0, 1)
    assert seq.gathered is not old_list
    assert not seq.commit(old_run, 2)
    with pytest.raises(AssertionError, match="in flight"):
        seq.start(slot=0, num_hit_tokens=0)
    seq.append(9)
    seq.start(slot=0, num_hit_tokens=0)
    assert (seq.prefill_end, seq.tokens) == (3, [0, 1, 9])
    assert not seq.commit(old_run, 2)  # a step of the earlier run comes late
    assert seq.num_computed_tokens == 0


def test_commit_never_exceeds_the_plan() -> None:
    seq = sequence(prompt=6)
    seq.start(slot=0, num_hit_tokens=0)
    seq.plan(4)
    assert seq.commit(seq.run, 4)
    assert seq.num_computed_tokens == 4
    with pytest.raises(AssertionError):
        seq.commit(seq.run, 5)


def test_a_fork_starts_at_the_end_of_its_parents_prompt() -> None:
    parent, child = sequence(prompt=3), sequence(prompt=3)
    parent.start(slot=0, num_hit_tokens=0)
    parent.plan(3)
    child.fork_from(parent, slot=1)
    assert (child.num_planned_tokens, child.num_in_flight, child.in_prefill, child.can_decode) == (3, 1, False, True)
    child.check()


def test_planning_more_than_is_known_is_our_bug() -> None:
    seq = sequence(prompt=3)
    seq.start(slot=0, num_hit_tokens=0)
    with pytest.raises(AssertionError):
        seq.plan(4)


def test_a_token_that_nobody_planned_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="nobody planned"):
        sequence().append(1)
