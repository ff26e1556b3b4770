"""Which of several workers gets a request: pure functions of what is known of them.

Every policy gets at least one candidate; all are well and have room. `turn` grows by one with each choice, and is the
only source of variety, so a choice can be repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from baton.router.demand import Demand
from baton.router.view import WorkerView

Policy = Callable[[Sequence[WorkerView], Demand, int], WorkerView]

_OVERLOAD_TOKENS = 8192
_MASK = (1 << 64) - 1


def round_robin(candidates: Sequence[WorkerView], demand: Demand, turn: int) -> WorkerView:
    """One after the other."""
    return candidates[turn % len(candidates)]


def power_of_two(candidates: Sequence[WorkerView], demand: Demand, turn: int) -> WorkerView:
    """The one with fewer requests of two that are drawn from a hash of `turn`.

    Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001).
    """
    drawn, count = _mixed(turn), len(candidates)
    first = drawn % count
    second = (first + 1 + (drawn >> 32) % (count - 1)) % count if count > 1 else first
    return min(candidates[first], candidates[second], key=lambda worker: worker.num_requests)


def least_tokens(candidates: Sequence[WorkerView], demand: Demand, turn: int) -> WorkerView:
    """The one with the fewest tokens outstanding; equal ones by turns."""
    return min(_rotated(candidates, turn), key=lambda worker: worker.num_tokens)


def prefix_affinity(candidates: Sequence[WorkerView], demand: Demand, turn: int) -> WorkerView:
    """The one that has seen most of the prompt, then the one with the fewest tokens outstanding.

    One with over 8192 tokens outstanding more than the least loaded is passed over: waiting behind those would cost
    more than the tokens saved.
    """
    bound = min(worker.num_tokens for worker in candidates) + _OVERLOAD_TOKENS
    near = [worker for worker in _rotated(candidates, turn) if worker.num_tokens <= bound]
    return min(near, key=lambda worker: (-worker.num_matched_tokens, worker.num_tokens))


def free_blocks(candidates: Sequence[WorkerView], demand: Demand, turn: int) -> WorkerView:
    """The one that will have most KV blocks left, then the one with the least KV on its way to it, then by turns."""
    return max(_rotated(candidates, turn), key=lambda worker: (worker.room_blocks, -worker.inbound_tokens))


POLICIES: dict[str, Policy] = {
    policy.__name__: policy for policy in (round_robin, power_of_two, least_tokens, prefix_affinity, free_blocks)
}
"""By the name that a user gives."""

USES_PREFIXES = frozenset((prefix_affinity,))


def of_session(candidates: Sequence[WorkerView], session: str) -> WorkerView:
    """The candidate of a session: the same as long as it is one of them, and few sessions move when others come or go.

    Source: rendezvous hashing, D. Thaler and C. Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998).
    """
    return max(candidates, key=lambda worker: _digest(session, worker.worker_id))


def _digest(session: str, worker_id: str) -> bytes:
    return hashlib.blake2b(f"{len(session)}:{session}{worker_id}".encode(), digest_size=8).digest()


def _rotated(candidates: Sequence[WorkerView], turn: int) -> Sequence[WorkerView]:
    """From another one on at each turn: `min` and `max` take the first of equals."""
    start = turn % len(candidates)
    return [*candidates[start:], *candidates[:start]]


def _mixed(number: int) -> int:
    """Splitmix64: 64 well mixed bits of a counter. Source: G. Steele et al., Fast Splittable PRNGs (2014)."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & _MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31
