"""The prompt's KV has come from another engine: who gets it, and who has to sample its first token here."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from baton.sched.roster import Roster
from baton.sched.sequence import Sequence


def publish_landed(roster: Roster, leader: Sequence) -> list[Sequence]:
    """The reserved blocks are filled: others may find them. Returns the live sequences of the request."""
    roster.cache.publish(leader.key, leader.tokens, leader.num_prompt_tokens)
    return [leader, *leader.live_forks]


def settle_landed(roster: Roster, leader: Sequence, going_on: Seq[Sequence], unsampled: Seq[Sequence]) -> None:
    """Divide what has landed. Afterwards the leader, if it is not the first of `going_on`, holds nothing.

    Args:
        leader: holds slot and blocks, reserved.
        going_on: sequences that know their first token and have not ended by it: the first gets slot and blocks, the
            others fork from it when it is planned.
        unsampled: their first token did not come. They queue on their own, and find the blocks as a prefix.
    """
    leader.forks = []
    for seq in unsampled:
        if seq is not leader:
            seq.chain, seq.num_cached_tokens = leader.chain.fork(), leader.num_cached_tokens
    if not going_on:
        roster.unreserve(leader)
    else:
        holder = going_on[0]
        if holder is not leader:
            roster.hand_over(leader, holder)
        roster.land(holder)
        holder.forks = list(going_on[1:])
    for seq in unsampled:
        roster.enqueue(seq)
