"""Who sends what to whom, cell by cell: each (head, layer) of a taker rank comes from exactly one giver rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.geometry import RankGeometry
from baton.transfer.mapping import GeometryError, Share, givers_of, map_ranks, shares_from, shares_to

LAYERS = 3
SIZES = (1, 2, 4, 8)


def ranks(tp: int, pp: int, heads: int, block_tokens: int = 16, num_blocks: int = 40) -> list[RankGeometry]:
    """A model of `heads` KV heads and 3 layers over pp stages of tp ranks; with tp > heads, heads are replicated."""
    share = max(heads // tp, 1)
    cuts = [stage * LAYERS // pp for stage in range(pp + 1)]
    return [
        RankGeometry(
            base_address=1 << 20,
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            first_head=rank * heads // tp,
            num_heads=share,
            first_layer=first_layer,
            num_layers=end - first_layer,
            head_dim=3,
            dtype_bytes=1,
        )
        for first_layer, end in pairwise(cuts)
        for rank in range(tp)
    ]


def cells(part: RankGeometry | Share) -> set[tuple[int, int]]:
    return set(
        product(
            range(part.first_head, part.first_head + part.num_heads),
            range(part.first_layer, part.first_layer + part.num_layers),
        )
    )


def assert_each_cell_once(
    givers: Sequence[RankGeometry], takers: Sequence[RankGeometry], shares: Sequence[Share]
) -> None:
    for taker_rank, taker in enumerate(takers):
        sent = Counter(cell for share in shares if share.taker_rank == taker_rank for cell in cells(share))
        assert sent == Counter(cells(taker))
    for share in shares:
        assert cells(share) <= cells(givers[share.giver_rank])
    pairs = [(share.giver_rank, share.taker_rank) for share in shares]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("heads", SIZES)
@pytest.mark.parametrize(("giver_pp", "taker_pp"), list(product((1, 2, 3), (1, 2))))
def test_each_head_and_layer_of_a_taker_comes_from_one_giver(giver_pp: int, taker_pp: int, heads: int) -> None:
    for giver_tp, taker_tp in product(SIZES, SIZES):
        givers, takers = ranks(giver_tp, giver_pp, heads), ranks(taker_tp, taker_pp, heads)
        assert_each_cell_once(givers, takers, map_ranks(givers, takers))


def test_the_check_sees_a_share_that_is_missing_doubled_or_not_held() -> None:
    givers, takers = ranks(4, 1, 4), ranks(2, 1, 4)
    shares = map_ranks(givers, takers)
    swapped = [replace(share, giver_rank=3 - share.giver_rank) for share in shares]
    for wrong in (shares[1:], [*shares, shares[0]], swapped):
        with pytest.raises(AssertionError):
            assert_each_cell_once(givers, takers, wrong)


def test_one_share_written_out() -> None:
    # Giver: 2 stages x 2 ranks, 8 heads, layers 0 | 1-2. Taker: one rank. The last giver has heads 4-7 of layers 1-2.
    shares = map_ranks(ranks(2, 2, 8), ranks(1, 1, 8))
    assert shares[3] == Share(giver_rank=3, taker_rank=0, first_head=4, num_heads=4, first_layer=1, num_layers=2)
    assert [share.giver_rank for share in shares] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("giver_tp", "taker_tp", "heads", "owners"),
    [
        # One head on 8 ranks to one head on 8 ranks: each replica serves one.
        (8, 8, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        # Two heads on 8 ranks (replicas 0-3 and 4-7), takers 0, 1 hold head 0 and takers 2, 3 head 1.
        (8, 4, 2, [0, 1, 4, 5]),
        # Two ranks hold the head, four want it.
        (2, 4, 1, [0, 1, 0, 1]),
        # One rank wants both heads: one replica of each.
        (4, 1, 2, [0, 2]),
    ],
)
def test_replicas_share_the_work(giver_tp: int, taker_tp: int, heads: int, owners: list[int]) -> None:
    shares = map_ranks(ranks(giver_tp, 1, heads), ranks(taker_tp, 1, heads))
    assert [share.giver_rank for share in shares] == owners


def test_who_sends_and_who_is_heard() -> None:
    # 4 ranks with one of 2 heads each twice; the taker's two ranks hold one head each.
    shares = map_ranks(ranks(4, 2, 2), ranks(2, 1, 2))
    assert [(s.taker_rank, s.first_layer) for s in shares_from(shares, 0)] == [(0, 0)]
    assert shares_from(shares, 1) == ()  # rank 0 stands in for it
    assert [(s.giver_rank, s.first_layer) for s in shares_to(shares, 1)] == [(2, 0), (6, 1)]
    assert givers_of(shares, 0) == {0, 4}
    assert givers_of(shares, 1) == {2, 6}
    assert givers_of(shares, 2) == set()


@pytest.mark.parametrize(
    ("giver", "taker", "field", "giver_value", "taker_value"),
    [
        ({"head_dim": 128}, {"head_dim": 64}, "head_dim", "128", "64"),
        ({"dtype_bytes": 1}, {"dtype_bytes": 2}, "dtype_bytes", "1", "2"),
        ({"block_tokens": 48}, {"block_tokens": 32}, "block_tokens", "48", "32"),
        ({"num_heads": 2}, {"num_heads": 4}, "KV heads", "0-1", "0-3"),
        ({"first_head": 1, "num_heads": 3}, {"num_heads": 4}, "KV heads", "1-3", "0-3"),
        ({"num_layers": 24}, {"num_layers": 28}, "layers", "0-23", "0-27"),
        ({"num_blocks": 0}, {}, "num_blocks", "0", "10"),
        ({}, {"block_tokens": -16}, "block_tokens", "16", "-16"),
        ({"first_head": -1}, {}, "first_head", "-1", "0"),
        ({}, {"base_address": 2**63}, "base_address", "4096", "9223372036854775808"),
        ({"num_blocks": 2**60}, {}, "base_address", "4096", "4096"),
    ],
)
def test_a_pair_that_cannot_work_is_refused_by_name(
    giver: dict[str, int], taker: dict[str, int], field: str, giver_value: str, taker_value: str
) -> None:
    base = RankGeometry(
        base_address=4096,
        num_blocks=10,
        block_tokens=16,
        first_head=0,
        num_heads=4,
        first_layer=0,
        num_layers=2,
        head_dim=8,
        dtype_bytes=2,
    )
    with pytest.raises(GeometryError) as caught:
        map_ranks([replace(base, **giver)], [replace(base, **taker)])
    error = caught.value
    assert (error.field, error.giver, error.taker) == (field, giver_value, taker_value)
    assert str(error) == f"{field}: giver has {giver_value}, taker has {taker_value}"


def test_a_hole_between_giver_ranks_is_named() -> None:
    # Of 8 heads on 4 ranks rank 1 (heads 2-3) is not there.
    givers = ranks(4, 1, 8)
    del givers[1]
    with pytest.raises(GeometryError) as caught:
        map_ranks(givers, ranks(1, 1, 8))
    assert (caught.value.field, caught.value.giver, caught.value.taker) == ("KV heads", "0-1,4-5,6-7", "0-7")


def test_a_missing_corner_is_named() -> None:
    # 2 stages of 2 ranks without the last: every head and every layer is held, heads 4-7 of layers 1-2 are not.
    with pytest.raises(GeometryError) as caught:
        map_ranks(ranks(2, 2, 8)[:3], ranks(1, 1, 8))
    error = caught.value
    assert error.field == "KV heads"
    assert error.giver == "0-3 of layers 0-0,4-7 of layers 0-0,0-3 of layers 1-2"
    assert error.taker == "0-7 of layers 0-2"


def test_giver_ranks_that_overlap_in_part_are_refused() -> None:
    one, other = ranks(2, 1, 4)
    with pytest.raises(GeometryError, match=r"KV heads: giver has overlapping 0-1 of layers 0-2,1-2 of layers 0-2"):
        map_ranks([one, replace(other, first_head=1)], ranks(1, 1, 4))


def test_ranks_of_one_engine_that_differ_are_named() -> None:
    one, other = ranks(2, 1, 4)
    with pytest.raises(GeometryError, match="head_dim: giver has 3,5, taker has 3"):
        map_ranks([one, replace(other, head_dim=5)], ranks(1, 1, 4))


def test_no_ranks() -> None:
    assert map_ranks(ranks(1, 1, 1), []) == ()
    with pytest.raises(GeometryError, match="KV heads: giver has none, taker has 0-0"):
        map_ranks([], ranks(1, 1, 1))


small = st.integers(-1, 5)
any_rank = st.builds(
    RankGeometry,
    base_address=small,
    num_blocks=small,
    block_tokens=st.sampled_from((0, 8, 12, 16)),
    first_head=small,
    num_heads=small,
    first_layer=st.integers(0, 2),
    num_layers=st.integers(1, 3),
    head_dim=st.just(4),
    dtype_bytes=st.just(2),
)
sane_rank = st.builds(
    RankGeometry,
    base_address=st.just(0),
    num_blocks=st.just(4),
    block_tokens=st.sampled_from((8, 16)),
    first_head=st.integers(0, 4),
    num_heads=st.integers(1, 4),
    first_layer=st.integers(0, 2),
    num_layers=st.integers(1, 3),
    head_dim=st.just(4),
    dtype_bytes=st.just(2),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(any_rank | sane_rank, max_size=5), st.lists(any_rank | sane_rank, max_size=5))
def test_any_two_cards_are_mapped_or_refused(givers: list[RankGeometry], takers: list[RankGeometry]) -> None:
    try:
        shares = map_ranks(givers, takers)
    except GeometryError as error:
        assert error.field and error.giver and error.taker
    else:
        assert_each_cell_once(givers, takers, shares)
