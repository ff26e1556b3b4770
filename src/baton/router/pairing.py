"""Whether two workers can hand over to one another, and if not, why, in words. Pure."""

from __future__ import annotations

from baton.core.handoff import Role, TransferMode
from baton.router.worker import WorkerFacts

GIVES = (Role.PREFILL, Role.MIXED)
TAKES = (Role.DECODE, Role.MIXED)


def why_not_paired(
    prefill: WorkerFacts, decode: WorkerFacts, modes: frozenset[TransferMode] = frozenset(TransferMode)
) -> str:
    """One sentence for a person; "" when `prefill` can give to `decode` in one of the modes."""
    if prefill.kind is not decode.kind:
        return f"the kind of server differs: {prefill.kind.value} there, {decode.kind.value} here"
    if prefill.role not in GIVES or decode.role not in TAKES:
        return f"a {prefill.role.value} worker cannot give to a {decode.role.value} worker"
    if prefill.fingerprint and decode.fingerprint and prefill.fingerprint != decode.fingerprint:
        return f"the model or its weights differ: {prefill.fingerprint[:16]} and {decode.fingerprint[:16]}"
    if prefill.models and decode.models and not set(prefill.models) & set(decode.models):
        return f"they serve different names: {', '.join(prefill.models)} and {', '.join(decode.models)}"
    if not prefill.transfer_modes and not decode.transfer_modes:
        return "neither has an endpoint for hand-offs; start both with --role"
    shared = prefill.transfer_modes & decode.transfer_modes & modes
    if not shared:
        return (
            f"they share no transfer mode: {_names(prefill.transfer_modes)} there, {_names(decode.transfer_modes)} here"
        )
    if shared == {TransferMode.PUSH} and prefill.peer is None:
        return "the prefill worker pushes, and its control endpoint is not known; name it as `peer`"
    return ""


def _names(modes: frozenset[TransferMode]) -> str:
    return ", ".join(sorted(mode.value for mode in modes)) or "none"


def why_misplaced(wanted: Role | None, facts: WorkerFacts) -> str:
    """Why a worker cannot have the role it was named with; "" when it can. One that is MIXED can have any."""
    if wanted is None or facts.role in (wanted, Role.MIXED):
        return ""
    return f"it was named as a {wanted.value} worker, but says it is a {facts.role.value} worker"
