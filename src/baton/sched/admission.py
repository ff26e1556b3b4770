"""Who comes in: waiting sequences, strictly in order, as long as slots, blocks and budget last.

Sequences whose KV comes from another engine need no budget: they reserve blocks, and wait for it outside the queue.
"""

from __future__ import annotations

from baton.sched.draft import StepDraft
from baton.sched.planning import run_prefill
from baton.sched.roster import Roster
from baton.sched.sequence import Sequence


def admit_waiting(draft: StepDraft, roster: Roster) -> None:
    """Admit from the front of the queue. The first that does not fit holds back the others: nobody is overtaken."""
    while roster.slots.num_free > 0 and not draft.preempted:
        seq = roster.next_waiting()
        if seq is None:
            return
        if seq.awaits_kv:
            if not _reserve(roster, seq):
                return
            continue
        if draft.budget == 0 or seq.num_in_flight > 0 or not _admit(draft, roster, seq):
            return
        run_prefill(draft, roster, seq)


def _reserve(roster: Roster, seq: Sequence) -> bool:
    """Give it a slot and blocks for its prompt, open to the network; False if they are not free.

    What is reserved cannot be preempted, so a free block is left for the next token of every sequence that runs or
    is reserved. If there is none, whatever is free may be taken.
    """
    cache, num_tokens = roster.cache, seq.num_prompt_tokens
    hit = cache.find_hit(seq.chain, seq.tokens, whole=True)
    if not cache.fits(hit, num_tokens, spare=len(roster.running) + len(roster.reserved)):
        return False
    cache.begin(seq.key, seq.chain, hit)
    new = cache.grow(seq.key, num_tokens, in_runs=True)
    assert new is not None, "the cache said that it fits"
    num_hit_tokens = len(hit) * cache.block_tokens
    _note_hit(roster, seq, num_hit_tokens)
    roster.reserve(seq, num_hit_tokens)
    return True


def _admit(draft: StepDraft, roster: Roster, seq: Sequence) -> bool:
    """Give it a slot and blocks for all its known tokens, prefix hits first; False if they are not free."""
    cache = roster.cache
    num_tokens = len(seq.tokens)
    hit = [] if seq.gathers_prompt_logprobs else cache.find_hit(seq.chain, seq.tokens)
    if not cache.fits(hit, num_tokens):
        return False
    cache.begin(seq.key, seq.chain, hit)
    new = cache.grow(seq.key, num_tokens)
    assert new is not None, "the cache said that it fits"
    num_hit_tokens = len(hit) * cache.block_tokens
    _note_hit(roster, seq, num_hit_tokens)
    roster.start(seq, num_hit_tokens)
    draft.admit(seq, (*hit, *new))
    return True


def _note_hit(roster: Roster, seq: Sequence, num_hit_tokens: int) -> None:
    """The first time a sequence gets blocks is what the figures of the prefix cache count."""
    if seq.num_cached_tokens is None:
        num_found = num_hit_tokens if roster.cache.config.enable_prefix_caching else 0
        seq.num_cached_tokens = min(num_found, seq.num_prompt_tokens)
        roster.prefix_query_tokens += len(seq.tokens)
        roster.prefix_hit_tokens += num_found
