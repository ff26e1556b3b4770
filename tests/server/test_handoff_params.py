"""What a request's kv_transfer_params mean; the field names are those of vLLM 0.33's NIXL connectors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import RequestError
from baton.core.handoff import Handoff, PeerAddress, Role, Ticket, TransferMode
from baton.server.handoff_params import parse_handoff, prefill_only, ticket_params, unknown_names
from baton.wire.openai.chat import ChatRequest
from baton.wire.openai.completions import CompletionRequest
from tests.server.scripted import peer_info

GIVE = {"do_remote_decode": True}
TAKE = {"do_remote_prefill": True, "remote_host": "p.example", "remote_port": 5600, "transfer_id": "t-1"}
SOURCE = PeerAddress(host="p.example", port=5600)
PULL = TransferMode.PULL
TICKET = Ticket(transfer_id="t-1", num_tokens=40, block_ids=(7, 8, 3))


@pytest.mark.parametrize(
    "params", [None, {}, {"do_remote_decode": False, "do_remote_prefill": None}, {"remote_host": None}, {"other": [1]}]
)
@pytest.mark.parametrize("peer", [None, peer_info()], ids=["no peer", "peer"])
def test_plain_requests(params: Any, peer: Any) -> None:
    assert parse_handoff(params, peer) is None


def test_a_giver_keeps_the_transfer_id_or_gets_a_fresh_one() -> None:
    nulls = {"do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_port": None}
    assert parse_handoff({**GIVE, **nulls, "transfer_id": "a"}, peer_info()) == Handoff(transfer_id="a")
    made = {parse_handoff({**GIVE, **nulls}, peer_info()) for _ in range(50)}
    assert len(made) == 50
    assert all(each is not None and each.gives and re.fullmatch("[0-9a-f]{32}", each.transfer_id) for each in made)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (TAKE, Handoff(transfer_id="t-1", source=SOURCE)),
        ({**TAKE, "remote_engine_id": "e"}, Handoff(transfer_id="t-1", source=replace(SOURCE, engine_id="e"))),
        ({**TAKE, "transfer_id": None, "remote_request_id": "r"}, Handoff(transfer_id="r", source=SOURCE)),
        ({**TAKE, "remote_request_id": "r"}, Handoff(transfer_id="t-1", source=SOURCE)),
        (
            {**TAKE, "remote_host": "fe80::1%eth0"},
            Handoff(transfer_id="t-1", source=replace(SOURCE, host="fe80::1%eth0")),
        ),
        (
            {
                **TAKE,
                "tp_size": 2,
                "pp_size": 1,
                "dcp_size": 1,
                "remote_num_tokens": 40,
                "transfer_mode": "pull",
                "remote_block_ids": [[1, 2], []],
                "remote_blocks_expiry_time": 1.5,
                "what": "ever",
                "remote_registration_generation": 0,
            },
            Handoff(transfer_id="t-1", source=SOURCE, mode=PULL),
        ),
        ({**TAKE, "transfer_mode": "pull"}, Handoff(transfer_id="t-1", source=SOURCE, mode=PULL)),
        ({**TAKE, "remote_block_ids": [3, 4]}, Handoff(transfer_id="t-1", source=SOURCE, mode=PULL)),
        ({**TAKE, "remote_block_ids": [3], "transfer_mode": "push"}, Handoff(transfer_id="t-1", source=SOURCE)),
        ({**TAKE, "remote_block_ids": []}, Handoff(transfer_id="t-1", source=SOURCE)),
    ],
)
def test_a_taker(params: dict[str, Any], wanted: Handoff) -> None:
    assert parse_handoff(params, peer_info()) == wanted


@pytest.mark.parametrize("only", TransferMode)
def test_an_engine_that_works_one_way_takes_whatever_does_not_say_how(only: TransferMode) -> None:
    for params in (TAKE, {**TAKE, "remote_block_ids": [[1]]}, {**TAKE, "transfer_mode": only.value}):
        found = parse_handoff(params, peer_info(Role.DECODE, only))
        assert found is not None and found.mode is only
    (other,) = set(TransferMode) - {only}
    with pytest.raises(RequestError, match=f"is {other.value}, and .* --transfer {only.value}"):
        parse_handoff({**TAKE, "transfer_mode": other.value}, peer_info(Role.DECODE, only))


def test_a_ticket_is_what_a_taker_needs() -> None:
    """The answer's fields, as they are, are a valid request to the decode engine."""
    peer = peer_info(Role.PREFILL)
    answer = msgspec.json.decode(msgspec.json.encode(ticket_params(TICKET, peer)))
    assert answer == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-prefill",
        "remote_request_id": "t-1",
        "remote_block_ids": [[7, 8, 3]],
        "remote_host": "10.0.0.7",
        "remote_port": 5600,
        "tp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 40,
        "transfer_id": "t-1",
    }
    source = PeerAddress(host="10.0.0.7", port=5600, engine_id="engine-prefill")
    assert parse_handoff(answer, peer_info(Role.DECODE)) == Handoff(transfer_id="t-1", source=source, mode=PULL)


LONG = "x" * 257
HOSTILE: list[tuple[str, Any]] = [
    *(("do_remote_decode", value) for value in (1, 0, "true", [], {}, 1.0)),
    *(("do_remote_prefill", value) for value in (1, "yes", [True])),
    *(
        ("transfer_id", value)
        for value in ("", LONG, "a b", "a\0", "a\n", "\u00e9", "\ud83d", 5, True, ["t"], {"t": 1})
    ),
    *(("remote_request_id", value) for value in ("", LONG, "\x7f", 1.5)),
    *(("remote_engine_id", value) for value in ("", LONG, "\t", 7)),
    *(("remote_host", value) for value in ("", "h" * 254, "a b", "h\0st", "h\r\nx", 127001, ["localhost"])),
    *(("remote_port", value) for value in (0, -1, 65536, 1 << 70, 5600.0, 5600.5, True, "5600", [5600], {}, 1e308)),
    *(("tp_size", value) for value in (0, -1, 4097, True, 1.0, "1", [1])),
    *(("pp_size", value) for value in (0, False, "x")),
    *(("dcp_size", value) for value in (0, 1.5)),
    *(("remote_num_tokens", value) for value in (-1, 1.0, True, "9", 1 << 63)),
    *(("remote_block_ids", value) for value in ("1", 1, {}, [1.0], [True], [-1], [[1], 2], [2, [1]], [[[1]]], [None])),
    *(("remote_block_ids", value) for value in ([0] * ((1 << 20) + 1), [[]] * ((1 << 20) + 1), [1 << 63])),
    *(("remote_blocks_expiry_time", value) for value in ("soon", True, [])),
    *(("remote_registration_generation", value) for value in (-1, "x", 0.0)),
    *(("transfer_mode", value) for value in ("PUSH", "", "copy", 1, ["push"], True)),
]


@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("base", [{}, GIVE, TAKE], ids=["plain", "give", "take"])
def test_refused_by_name(base: dict[str, Any], name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        parse_handoff({**base, name: value}, peer_info())
    assert refused.value.param == f"kv_transfer_params.{name}"
    assert len(str(refused.value)) < 300 and str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["remote_host", "remote_port", "transfer_id"])
def test_a_taker_needs(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_handoff({**TAKE, name: None}, peer_info())
    assert refused.value.param == f"kv_transfer_params.{name}"


@pytest.mark.parametrize(
    ("params", "role", "param", "says"),
    [
        (GIVE, None, "do_remote_decode", "--role prefill"),
        (TAKE, None, "do_remote_prefill", "--role decode"),
        (GIVE, Role.DECODE, "do_remote_decode", "--role decode"),
        (TAKE, Role.PREFILL, "do_remote_prefill", "--role prefill"),
        ({**GIVE, **TAKE}, Role.MIXED, "do_remote_prefill", "exclude each other"),
    ],
)
def test_roles(params: dict[str, Any], role: Role | None, param: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        parse_handoff(params, None if role is None else peer_info(role))
    assert refused.value.param == f"kv_transfer_params.{param}"


def test_each_role_takes_its_own() -> None:
    assert parse_handoff(GIVE, peer_info(Role.PREFILL)) is not None
    assert parse_handoff(TAKE, peer_info(Role.DECODE)) is not None


def test_unknown_names_are_those_that_vllm_has_not() -> None:
    assert unknown_names({**TAKE, "dcp_size": 1, "zeta": 1, "alpha": {}}) == ["alpha", "zeta"]


def test_a_prefill_runs_to_its_first_token() -> None:
    body = prefill_only(CompletionRequest(prompt="x", max_tokens=100, min_tokens=50, n=3))
    assert (body.max_tokens, body.min_tokens, body.n) == (1, 1, 3)
    chat = prefill_only(ChatRequest(messages=[], max_completion_tokens=9))
    assert (chat.max_tokens, chat.max_completion_tokens, chat.min_tokens) == (1, 1, None)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
NAMES = [
    *ticket_params(TICKET, peer_info()).__struct_fields__,
    "transfer_mode",
    "dcp_size",
    "remote_blocks_expiry_time",
    "other",
]


@settings(max_examples=500, deadline=None, database=None)
@given(
    base=st.sampled_from([{}, GIVE, TAKE]),
    changes=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
    peer=st.sampled_from([None, *(peer_info(role) for role in Role)]),
)
def test_any_json_is_a_handoff_or_refused_by_name(base: dict[str, Any], changes: dict[str, Any], peer: Any) -> None:
    params = {**base, **changes}
    try:
        found = parse_handoff(params, peer)
    except RequestError as error:
        prefix, _, name = (error.param or "").partition(".")
        assert prefix == "kv_transfer_params" and name in NAMES
        assert str(error).isprintable()
        return
    if found is None:
        assert not params.get("do_remote_decode") and not params.get("do_remote_prefill")
        return
    assert peer is not None and peer.role in (Role.MIXED, Role.PREFILL if found.gives else Role.DECODE)
    assert 1 <= len(found.transfer_id) <= 256 and found.transfer_id.isprintable()
    assert found.source is None or 1 <= found.source.port <= 65535
