"""Workers as the page, /fleet and GET /workers show them. Pure but for reading them."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.handoff import Role
from baton.router.member import Member
from baton.router.pairing import why_not_paired
from baton.router.panel import WorkerPanel
from baton.router.worker import Outstanding, WorkerFacts


def show_members(members: Sequence[Member], now: float) -> tuple[WorkerPanel, ...]:
    """Each of them, with the others that it is never paired with."""
    return tuple(_panel(member, members, now) for member in members)


def _panel(member: Member, members: Sequence[Member], now: float) -> WorkerPanel:
    life = member.life
    sent = Outstanding() if life is None else life.outstanding
    return WorkerPanel(
        worker_id=member.worker_id,
        url=member.spec.url,
        state=member.state,
        role=member.role,
        facts=None if life is None else life.facts,
        gauges=member.gauges,
        breaker="closed" if life is None else life.breaker.state(now).value,
        note=member.note,
        num_requests=sent.num_requests,
        num_tokens=sent.num_tokens,
        inbound_tokens=sent.inbound_tokens,
        handoff=member.handoff,
        unpaired={} if life is None else unpaired(member, life.facts, members),
        api_key=member.spec.api_key,
    )


def unpaired(member: Member, facts: WorkerFacts, members: Sequence[Member]) -> dict[str, str]:
    """Ids of workers that a hand-over with this one could be wished for, and why it cannot be."""
    reasons = {}
    for other in members:
        if other is member or other.life is None:
            continue
        theirs = other.life.facts
        if (member.role, other.role) == (Role.PREFILL, Role.DECODE):
            reasons[other.worker_id] = why_not_paired(facts, theirs)
        elif (member.role, other.role) == (Role.DECODE, Role.PREFILL):
            reasons[other.worker_id] = why_not_paired(theirs, facts)
    return {name: reason for name, reason in reasons.items() if reason}
