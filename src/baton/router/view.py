"""A worker as choosing sees it: values of one moment, nothing that changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.handoff import Role
from baton.router.demand import Demand
from baton.router.worker import Share, WorkerFacts, WorkerGauges

_QUEUED = 2
"""Requests that may wait in a worker that runs as many as it can, so that no slot is empty for a round trip."""
_BYTES_PER_TOKEN = 4
_BLOCK_TOKENS = 16  # of a worker that does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One incarnation of a worker.

    Attributes:
        role: what it is used as.
        takes: it is well, not draining, and its breaker lets a request pass.
        stalled: its engine has said nothing for a while; it gets nothing until it speaks again.
        num_matched_tokens: of the prompt in question, those whose KV it may have; 0 where nobody asked.
    """

    worker_id: str
    role: Role
    facts: WorkerFacts
    takes: bool = True
    stalled: bool = False
    gauges: WorkerGauges = field(default_factory=WorkerGauges)
    num_requests: int = 0
    num_tokens: int = 0
    prompt_blocks: int = 0
    final_blocks: int = 0
    inbound_tokens: int = 0
    num_matched_tokens: int = 0

    @property
    def room_blocks(self) -> int:
        """Blocks that neither are in use nor will be needed by what was sent to it; below 0 when it got too much.

        What it uses is mostly of what was sent to it, so the larger of the two counts.
        """
        return self.facts.num_blocks - max(self.gauges.used_blocks, self.final_blocks)

    def serves(self, model: str | None) -> bool:
        """Whether it knows the model by that name; one that tells no names serves any."""
        return model is None or not self.facts.models or model in self.facts.models


def share_of(facts: WorkerFacts, role: Role, demand: Demand, *, handed_over: bool) -> Share:
    """What a leg takes of a worker.

    Args:
        handed_over: it is one leg of two.
    """
    num_prompt = demand.num_prompt_tokens
    num_new = 1 if role is Role.PREFILL and handed_over else demand.num_new_tokens
    inbound = num_prompt if handed_over and role is not Role.PREFILL else 0
    return Share(
        num_tokens=num_prompt + num_new,
        prompt_blocks=_blocks(num_prompt + 1, facts),
        final_blocks=_blocks(num_prompt + num_new, facts),
        inbound_tokens=inbound,
    )


def _blocks(num_tokens: int, facts: WorkerFacts) -> int:
    return -(-num_tokens // (facts.block_tokens or _BLOCK_TOKENS))


def has_room(worker: WorkerView, demand: Demand) -> bool:
    """Whether it could begin a request soon. What a worker does not tell of itself does not limit it.

    A worker without requests always has room: what is too long for it is for it to refuse.
    """
    facts = worker.facts
    if worker.stalled or (facts.max_num_seqs and worker.num_requests >= facts.max_num_seqs + _QUEUED):
        return False
    needed = worker.prompt_blocks + _blocks(demand.num_prompt_tokens + 1, facts)
    return not facts.num_blocks or not worker.num_requests or needed <= facts.num_blocks


def matched_tokens(demand: Demand, matched_bytes: int) -> int:
    """Tokens of a prompt that so many bytes at its start stand for.

    Exact where `demand.prefix` is the whole prompt; of a longer one, four bytes are taken for a token.
    """
    if not matched_bytes:
        return 0
    whole = demand.num_prompt_tokens * matched_bytes // len(demand.prefix)
    return min(whole, matched_bytes // _BYTES_PER_TOKEN)
