"""Workers as choosing sees them, made up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from baton.core.handoff import Role, TransferMode
from baton.router.demand import Demand
from baton.router.view import WorkerView
from baton.router.worker import WorkerFacts, WorkerKind
from baton.wire.engine import PeerInfo

PREFILL, DECODE, MIXED = Role.PREFILL, Role.DECODE, Role.MIXED
PUSH, PULL = TransferMode.PUSH, TransferMode.PULL
BOTH = (PUSH, PULL)


def facts(role: Role = DECODE, modes: Iterable[TransferMode] = BOTH, **changes: Any) -> WorkerFacts:
    """Of a Baton engine with 100 blocks of 16 tokens, that runs 4 sequences at once; without modes it has no peer."""
    known = frozenset(modes)
    peer = PeerInfo(role=role, engine_id="e", host="h", port=1) if known else None
    given: dict[str, Any] = {
        "kind": WorkerKind.BATON,
        "incarnation": "e",
        "role": role,
        "transfer_modes": known,
        "peer": peer,
        "models": ("m",),
        "fingerprint": "f",
        "block_tokens": 16,
        "num_blocks": 100,
        "max_num_seqs": 4,
    }
    return WorkerFacts(**given | changes)


def view(worker_id: str, role: Role = DECODE, modes: Iterable[TransferMode] = BOTH, **changes: Any) -> WorkerView:
    """Keys of WorkerFacts go there."""
    own = {name: changes.pop(name) for name in list(changes) if name in WorkerView.__slots__}
    return WorkerView(worker_id=worker_id, role=role, facts=facts(role, modes, **changes), **own)


def demand(num_prompt: int = 32, num_new: int = 16, **changes: Any) -> Demand:
    return Demand(num_prompt_tokens=num_prompt, num_new_tokens=num_new, **changes)
