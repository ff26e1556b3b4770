"""`kv_transfer_params` with the fields of vLLM's NIXL connectors: what a client asks for, and what a giver answers.

Pure: no engine, no clock. Fields that vLLM has and this engine does not need are checked all the same.
"""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from baton.core.errors import RequestError
from baton.core.handoff import Handoff, PeerAddress, Role, Ticket, TransferMode
from baton.wire.engine import PeerInfo
from baton.wire.openai.common import GenerationFields
from baton.wire.openai.handoff import TicketParams

FIELD = "kv_transfer_params"
GIVE, TAKE = "do_remote_decode", "do_remote_prefill"
MAX_ID_CHARS = 256
_MAX_HOST_CHARS = 253  # RFC 1035, section 2.3.4
_MAX_SIZE = 4096
_MAX_BLOCKS = 1 << 20
_MAX_INT = (1 << 63) - 1
_MODES = tuple(mode.value for mode in TransferMode)
F = TypeVar("F", bound=GenerationFields)


def parse_handoff(params: Mapping[str, Any] | None, peer: PeerInfo | None) -> Handoff | None:
    """What a request asks for; None for a plain one. A giver without a transfer_id gets a fresh one.

    Args:
        params: the field as it came.
        peer: what this engine is to others; None: it cannot hand over.

    Raises:
        RequestError: `param` is "kv_transfer_params." and the field.
    """
    given = {name: value for name, value in (params or {}).items() if value is not None}
    for name, (holds, rule) in _RULES.items():
        _require(name not in given or holds(given[name]), name, f"{rule}, got {reprlib.repr(given.get(name))}")
    gives, takes = given.get(GIVE, False), given.get(TAKE, False)
    if not gives and not takes:
        return None
    _require(not (gives and takes), TAKE, f"and {GIVE} exclude each other")
    _check_role(peer, gives=gives)
    assert peer is not None
    if gives:
        return Handoff(transfer_id=given.get("transfer_id") or secrets.token_hex(16))
    return _taking(given, peer)


def _check_role(peer: PeerInfo | None, *, gives: bool) -> None:
    name, able = (GIVE, Role.PREFILL) if gives else (TAKE, Role.DECODE)
    if peer is None:
        raise _refusal(name, f"needs an engine with a peer; start this one with --role {able.value}")
    _require(
        peer.role in (able, Role.MIXED),
        name,
        f"is not possible here: this engine was started with --role {peer.role.value}",
    )


def _taking(given: Mapping[str, Any], peer: PeerInfo) -> Handoff:
    for name in ("remote_host", "remote_port"):
        _require(name in given, name, f"is required with {TAKE}")
    transfer_id = given.get("transfer_id") or given.get("remote_request_id")
    if transfer_id is None:
        raise _refusal("transfer_id", f"or remote_request_id is required with {TAKE}")
    source = PeerAddress(host=given["remote_host"], port=given["remote_port"], engine_id=given.get("remote_engine_id"))
    return Handoff(transfer_id=transfer_id, source=source, mode=_mode(given, peer.transfer_modes))


def _mode(given: Mapping[str, Any], able: Sequence[TransferMode]) -> TransferMode:
    """What is said. Where nothing is: block ids are known only once prefill has ended; a router that asks both engines
    at once has none."""
    if "transfer_mode" in given:
        mode = TransferMode(given["transfer_mode"])
        rule = f"is {mode.value}, and this engine was started with --transfer {able[0].value}"
        _require(mode in able, "transfer_mode", rule)
        return mode
    if len(able) == 1:
        return able[0]
    return TransferMode.PULL if given.get("remote_block_ids") else TransferMode.PUSH


def unknown_names(params: Mapping[str, Any] | None) -> list[str]:
    """Fields that neither this engine nor vLLM's connectors have; they are ignored."""
    return sorted(set(params or ()) - set(_RULES))


def prefill_only(body: F) -> F:
    """The request as a giver runs it: one token, whatever the client asked for."""
    changes: dict[str, Any] = {
        name: 1 for name in ("max_tokens", "max_completion_tokens") if name in body.__struct_fields__
    }
    if body.min_tokens is not None:
        changes["min_tokens"] = min(1, body.min_tokens)
    return msgspec.structs.replace(body, **changes)


def check_taking(body: GenerationFields) -> None:
    """Refuse what only the engine that prefills can answer.

    Raises:
        RequestError: naming the field.
    """
    for name, asked in (("prompt_logprobs", body.prompt_logprobs is not None), ("echo", getattr(body, "echo", None))):
        if asked:
            raise RequestError(f"{name} is answered by the prefill engine; not with {TAKE}", param=name)


def ticket_params(ticket: Ticket, peer: PeerInfo) -> TicketParams:
    """The field of a giver's answer."""
    return TicketParams(
        remote_engine_id=peer.engine_id,
        remote_request_id=ticket.transfer_id,
        remote_block_ids=(ticket.block_ids,),
        remote_host=peer.host,
        remote_port=peer.port,
        tp_size=peer.tp_size,
        pp_size=peer.pp_size,
        remote_num_tokens=ticket.num_tokens,
        transfer_id=ticket.transfer_id,
    )


def _refusal(name: str, rule: str) -> RequestError:
    path = f"{FIELD}.{name}"
    return RequestError(f"{path} {rule}", param=path)


def _require(condition: bool, name: str, rule: str) -> None:
    if not condition:
        raise _refusal(name, rule)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mode(value: Any) -> bool:
    return isinstance(value, str) and value in _MODES


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _word(max_chars: int) -> Callable[[Any], bool]:
    """Printable ASCII without spaces: it goes into frames, logs and addresses."""

    def holds(value: Any) -> bool:
        return (
            isinstance(value, str)
            and 1 <= len(value) <= max_chars
            and value.isascii()
            and value.isprintable()
            and " " not in value
        )

    return holds


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return type(value) is int and low <= value <= high

    return holds


def _are_blocks(value: Any) -> bool:
    """Block ids, or a list of them for each group."""
    if not isinstance(value, list) or len(value) > _MAX_BLOCKS:
        return False
    groups = value if value and isinstance(value[0], list) else [value]
    return (
        all(isinstance(group, list) for group in groups)
        and sum(map(len, groups)) <= _MAX_BLOCKS
        and all(type(block) is int and 0 <= block <= _MAX_INT for group in groups for block in group)
    )


_ID = (_word(MAX_ID_CHARS), f"must be 1 to {MAX_ID_CHARS} printable ASCII characters without spaces")
_BOOL = (_is_bool, "must be true or false")
_SIZE = (_integer(1, _MAX_SIZE), f"must be an integer from 1 to {_MAX_SIZE}")
_COUNT = (_integer(0, _MAX_INT), "must be an integer of at least 0")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    GIVE: _BOOL,
    TAKE: _BOOL,
    "transfer_id": _ID,
    "remote_request_id": _ID,
    "remote_engine_id": _ID,
    "remote_host": (_word(_MAX_HOST_CHARS), f"must be a host name or address of at most {_MAX_HOST_CHARS} characters"),
    "remote_port": (_integer(1, 65535), "must be an integer from 1 to 65535"),
    "tp_size": _SIZE,
    "pp_size": _SIZE,
    "dcp_size": _SIZE,
    "remote_num_tokens": _COUNT,
    "remote_registration_generation": _COUNT,
    "remote_blocks_expiry_time": (_is_number, "must be a number"),
    "remote_block_ids": (_are_blocks, f"must be lists of at most {_MAX_BLOCKS} block ids in all"),
    "transfer_mode": (_is_mode, f"must be {' or '.join(_MODES)}"),
}
"""Field -> (whether a value may stand there, what is said when not)."""
