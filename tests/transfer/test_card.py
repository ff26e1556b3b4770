"""Which two engines can work together, and by what name and values a difference is told."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.handoff import Role, TransferMode
from baton.core.model_config import ModelConfig
from baton.core.rope_config import RopeConfig, RopeKind
from baton.transfer.card import (
    Judge,
    compare_cards,
    compare_identities,
    model_facts,
    refusal,
    refusal_text,
    shown,
)
from baton.wire.handoff import PROTOCOL_VERSION, Card, Identity, RankCard, Refusal
from tests.transfer.peers_harness import GEOMETRY, IDENTITY, make_card, with_facts, with_geometry

ROPE = RopeConfig(theta=1e6, rotary_dim=128, max_positions=40960)
MODEL = ModelConfig(
    architecture="Qwen3ForCausalLM",
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151936,
    rope=ROPE,
    qk_norm=True,
    max_position_embeddings=40960,
    dtype="bfloat16",
    eos_token_ids=(1,),
)


def facts(model: ModelConfig = MODEL, **changes: Any) -> dict[str, str]:
    served = {"dtype": "bfloat16", "kv_dtype": "bfloat16", "tokenizer_digest": "abc", "weights_digest": "w", **changes}
    return model_facts(model, **served)


def identity(**changes: Any) -> Identity:
    return msgspec.structs.replace(IDENTITY, facts=facts(**changes))


def card(role: Role = Role.MIXED, name: str = "one", **changes: Any) -> Card:
    return make_card(name, role, "127.0.0.1", 1, b"agent", **changes)


def test_facts_name_everything_that_decides_kv() -> None:
    told = facts()
    assert told["architecture"] == "Qwen3ForCausalLM"
    assert (told["num_layers"], told["num_kv_heads"], told["head_dim"], told["vocab_size"]) == (
        "28",
        "8",
        "128",
        "151936",
    )
    assert (told["dtype"], told["kv_dtype"], told["tokenizer"], told["weights"]) == ("bfloat16", "bfloat16", "abc", "w")
    assert '"theta": 1000000.0' in told["rope"] and '"kind": "default"' in told["rope"]
    assert all(isinstance(value, str) for value in told.values())


def test_facts_differ_where_fingerprints_do() -> None:
    """The fingerprint is another reading of the same config."""
    others = [
        replace(MODEL, rope=replace(ROPE, theta=5e5)),
        replace(MODEL, rope=replace(ROPE, kind=RopeKind.LINEAR, factor=2.0)),
        replace(MODEL, qk_norm=False),
        replace(MODEL, num_kv_heads=4),
        replace(MODEL, rms_norm_eps=1e-5),
    ]
    for other in others:
        assert other.fingerprint("float32") != MODEL.fingerprint("float32")
        assert facts(other) != facts()
    same = replace(MODEL, eos_token_ids=(2, 3), initializer_range=1.0, dtype="float32")
    assert same.fingerprint("float32") == MODEL.fingerprint("float32")
    assert facts(same) == facts()


@pytest.mark.parametrize(
    ("giver", "taker", "expected"),
    [
        (
            msgspec.structs.replace(IDENTITY, protocol_version=9, facts={}),
            IDENTITY,
            ("protocol version", "9", str(PROTOCOL_VERSION)),
        ),
        (
            msgspec.structs.replace(IDENTITY, transfer_modes=(TransferMode.PULL,), facts={}),
            msgspec.structs.replace(IDENTITY, transfer_modes=(TransferMode.PUSH,)),
            ("transfer mode", "pull", "push"),
        ),
        (with_facts(dtype="float16", num_layers="2"), IDENTITY, ("dtype", "float16", "bfloat16")),
        (with_facts(num_layers=None), IDENTITY, ("num_layers", "not given", "28")),
        (IDENTITY, with_facts(weights="w"), ("weights", "not given", "w")),
        (with_facts(num_layers=""), with_facts(num_layers=None), ("num_layers", "", "not given")),
        (identity(kv_dtype="float16"), identity(), ("kv_dtype", "float16", "bfloat16")),
        (identity(tokenizer_digest="x"), identity(), ("tokenizer", "x", "abc")),
    ],
)
def test_the_first_difference_is_named_in_a_stable_order(
    giver: Identity, taker: Identity, expected: tuple[str, str, str]
) -> None:
    found = compare_identities(giver, taker)
    assert found is not None and (found.field, found.giver, found.taker) == expected
    back = compare_identities(taker, giver)
    assert back is not None and (back.field, back.taker, back.giver) == expected


def test_equal_identities_differ_in_nothing() -> None:
    assert compare_identities(identity(), identity()) is None


@pytest.mark.parametrize("giver", Role)
@pytest.mark.parametrize("taker", Role)
def test_roles(giver: Role, taker: Role) -> None:
    fits = giver in (Role.PREFILL, Role.MIXED) and taker in (Role.DECODE, Role.MIXED)
    found = compare_cards(card(giver, "g"), card(taker, "t"))
    assert found == (None if fits else Refusal(field="role", giver=giver.value, taker=taker.value))


TWO = tuple(
    RankCard(agent=b"a%d" % rank, geometry=replace(GEOMETRY, first_head=rank, num_heads=1)) for rank in range(2)
)


@pytest.mark.parametrize(
    ("giver", "taker", "field"),
    [
        ({"tp_size": 2, "ranks": TWO}, {}, None),
        ({}, {"tp_size": 2, "ranks": TWO}, None),
        ({"tp_size": 2}, {}, "tp_size * pp_size"),
        ({"ranks": TWO}, {}, "tp_size * pp_size"),
        ({}, {"ranks": ()}, "tp_size * pp_size"),
        ({}, {"tp_size": -1, "pp_size": -1}, "tp_size * pp_size"),
        ({}, {"tp_size": 1000, "ranks": TWO[:1] * 1000}, "tp_size * pp_size"),
        ({}, {"ranks": with_geometry("t", head_dim=16)}, "head_dim"),
        ({}, {"ranks": with_geometry("t", block_tokens=24)}, "block_tokens"),
        ({}, {"ranks": with_geometry("t", num_heads=4)}, "KV heads"),
        ({}, {"ranks": with_geometry("t", num_blocks=-1)}, "num_blocks"),
        ({}, {"ranks": with_geometry("t", num_heads=2**62)}, "base_address"),
    ],
)
def test_ranks_and_geometry(giver: dict[str, Any], taker: dict[str, Any], field: str | None) -> None:
    found = compare_cards(card(name="g", **giver), card(name="t", **taker))
    assert (None if found is None else found.field) == field


def test_a_card_is_not_looked_at_before_the_identities_agree() -> None:
    judge = Judge(IDENTITY, card(name="me"))
    refused = judge.taker(with_facts(dtype="x"), b"\xc1 no card")
    assert isinstance(refused, Refusal) and refused.field == "dtype"
    assert judge.taker(IDENTITY, b"\xc1 no card") is None


def test_a_judge_knows_which_side_it_is_on() -> None:
    judge = Judge(IDENTITY, card(Role.PREFILL, "me"))
    other = card(Role.DECODE, "other")
    assert judge.taker(IDENTITY, msgspec.msgpack.encode(other)) == other
    assert judge.giver(IDENTITY, msgspec.msgpack.encode(other)) == Refusal(
        field="role", giver="decode", taker="prefill"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_id": ""},
        {"engine_id": "x" * 129},
        {"host": ""},
        {"host": "x" * 256},
        {"port": 0},
        {"port": 65536},
        {"lease_s": 0.0},
        {"lease_s": math.inf},
        {"lease_s": math.nan},
    ],
)
def test_implausible_cards_are_none(changes: dict[str, Any]) -> None:
    other = msgspec.structs.replace(card(name="other"), **changes)
    assert Judge(IDENTITY, card(name="me")).taker(IDENTITY, msgspec.msgpack.encode(other)) is None


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 40)
GEOMETRIES = st.fixed_dictionaries({field.name: NUMBERS for field in fields(GEOMETRY)})
CARDS = st.fixed_dictionaries(
    {
        "engine_id": st.text(max_size=3),
        "host": st.text(max_size=3),
        "port": NUMBERS,
        "role": st.sampled_from(["prefill", "decode", "mixed", "?"]),
        "tp_size": st.integers(-2, 4) | NUMBERS,
        "pp_size": st.integers(-2, 4) | NUMBERS,
        "dp_size": NUMBERS,
        "lease_s": st.floats(),
        "ranks": st.lists(
            st.fixed_dictionaries({"agent": st.binary(max_size=4), "geometry": GEOMETRIES, "device": st.none()}),
            max_size=4,
        ),
    }
)


@given(CARDS | st.binary(max_size=50))
def test_any_card_gets_a_verdict(value: dict[str, Any] | bytes) -> None:
    judge = Judge(IDENTITY, card(name="me"))
    data = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    for verdict in (judge.taker(IDENTITY, data), judge.giver(IDENTITY, data)):
        assert verdict is None or isinstance(verdict, Card | Refusal)


def test_words_of_peers_are_fit_for_a_log() -> None:
    assert shown("a\nb\x1b[31m") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m"
    assert shown("x" * 200) == "x" * 200
    assert shown("x" * 10**6) == "x" * 200 + "..."
    assert refusal("f", 1, "t\n") == Refusal(field="f", giver="1", taker="t\N{REPLACEMENT CHARACTER}")
    text = refusal_text(Refusal(field="f\n", giver="g" * 300, taker="t"))
    assert text == f"f\N{REPLACEMENT CHARACTER}: giver has {'g' * 200}..., taker has t"
