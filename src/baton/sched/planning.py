"""Which running sequences run in this step: decodes first, then prefill chunks; who gives way when blocks are short."""

from __future__ import annotations

from baton.sched.draft import StepDraft
from baton.sched.roster import Roster
from baton.sched.sequence import Sequence
from baton.sched.status import Status


def plan_decodes(draft: StepDraft, roster: Roster) -> None:
    """One token for every running sequence past its prefill, in order, while the budget lasts.

    If the first in order is in prefill, one token of the budget is kept for it: it moves in every step.
    """
    kept = 1 if roster.running and roster.running[0].in_prefill else 0
    for seq in tuple(roster.running):
        if draft.budget <= kept:
            return
        if not seq.can_decode:
            continue
        blocks = _make_room(draft, roster, seq)
        if blocks is None:
            continue
        if seq.status is Status.LANDED:
            seq.enter()
            draft.admit(seq, roster.cache.table(seq.key))
            blocks = ()
        table_len = roster.cache.blocks_for(seq.num_planned_tokens + 1) - len(blocks)
        draft.run(seq, 1, table_len, blocks)


def fork_landed(draft: StepDraft, roster: Roster) -> None:
    """Siblings branch off the landed sequences that were just planned. Decodes, and nothing else, are planned before.

    The copy of the tail runs at the end of the step, so they decode in the next one. Their parent may write its own
    token into its tail before: at a position that they overwrite.
    """
    for planned in tuple(draft.planned_chunks):
        if planned.seq.forks:
            _fork(draft, roster, planned.seq)


def plan_prefills(draft: StepDraft, roster: Roster) -> None:
    """The next chunk of every sequence in prefill, in order, while the budget lasts."""
    for seq in tuple(roster.running):
        if draft.budget == 0:
            return
        if seq.in_prefill:
            run_prefill(draft, roster, seq)


def run_prefill(draft: StepDraft, roster: Roster, seq: Sequence) -> None:
    """The longest chunk that fits; when it is the last, siblings branch off."""
    if draft.run(seq, min(draft.budget, seq.num_unplanned_tokens)) and seq.forks:
        _fork(draft, roster, seq)


def _make_room(draft: StepDraft, roster: Roster, seq: Sequence) -> tuple[int, ...] | None:
    """Blocks for one more token of `seq` (maybe none are needed), or None if it cannot run in this step.

    Preempts the last in order until there is room, at worst `seq` itself; never one before it. Blocks that a
    running step or a withdrawn transfer still uses come free soon: they are waited for, not compensated by another
    victim.
    """
    cache = roster.cache
    num_tokens = seq.num_planned_tokens + 1
    missing = cache.missing(seq.key, num_tokens)
    while (blocks := cache.grow(seq.key, num_tokens)) is None:
        if missing <= cache.pool.num_free + cache.pool.num_quarantined + roster.pins.num_soon_free:
            return None
        victim = roster.running[-1]
        assert cache.last_step(victim.key) < draft.number, f"victim {victim.order} is planned in step {draft.number}"
        roster.preempt(victim)
        draft.preempted = True
        if victim is seq:
            return None
    return blocks


def _fork(draft: StepDraft, roster: Roster, parent: Sequence) -> None:
    """Start siblings on the last prompt chunk of `parent`, or on its landed blocks; queue those without room."""
    forks, parent.forks = parent.live_forks, []
    for child in forks:
        child.num_cached_tokens = parent.num_cached_tokens
        child.chain = parent.chain.fork()
        if not _start_fork(draft, roster, parent, child):
            roster.gives.left_out(child)
            roster.enqueue(child)


def _start_fork(draft: StepDraft, roster: Roster, parent: Sequence, child: Sequence) -> bool:
    if draft.preempted or roster.slots.num_free == 0:
        return False
    forked = roster.cache.fork(parent.key, child.key, child.chain, child.num_prompt_tokens)
    if forked is None:
        return False
    table, copies = forked
    landed = child.has_output
    roster.start_fork(child, parent)
    if landed:
        draft.fork_landed(child, table, copies)
    else:
        draft.fork(child, parent, table, copies)
    return True
