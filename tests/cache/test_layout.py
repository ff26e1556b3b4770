"""Bytes of a block, against the formula of the design: [block][kv_head][layer][K|V][token][head_dim]."""

from itertools import product

import pytest

from baton.cache.layout import BlockLayout
from baton.cache.spec import AttentionSpec

SPEC = AttentionSpec(num_layers=3, num_kv_heads=4, head_dim=8, dtype_bytes=2)
LAYOUT = BlockLayout(SPEC, block_tokens=16)


def test_sizes() -> None:
    # 3 layers x K and V x 16 tokens x 8 elements x 2 bytes = 1536 bytes a head, 4 heads.
    assert LAYOUT.head_bytes == 1536
    assert LAYOUT.block_bytes == 6144
    assert LAYOUT.token_bytes == 384
    assert LAYOUT.shape(10) == (10, 4, 3, 2, 16, 8)


def test_qwen3_06b_block_is_what_the_model_card_gives() -> None:
    # Qwen3-0.6B: 28 layers, 8 KV heads, head_dim 128, bf16: 28 * 8 * 128 * 2 * 2 = 114,688 bytes a token.
    layout = BlockLayout(AttentionSpec(num_layers=28, num_kv_heads=8, head_dim=128, dtype_bytes=2), 64)
    assert layout.token_bytes == 114_688
    assert layout.block_bytes == 64 * 114_688


def test_strides_enumerate_every_element_once_in_order() -> None:
    shape = LAYOUT.shape(2)
    offsets = [
        sum(i * stride for i, stride in zip(place, LAYOUT.strides, strict=True))
        for place in product(*(range(extent) for extent in shape))
    ]
    assert offsets == list(range(2 * LAYOUT.block_bytes // SPEC.dtype_bytes))


def test_heads_of_a_block_are_one_run_and_tile_it() -> None:
    whole = LAYOUT.byte_range(5)
    assert whole == (5 * 6144, 6144)
    halves = [LAYOUT.byte_range(5, first_head, 2) for first_head in (0, 2)]
    assert halves == [(5 * 6144, 3072), (5 * 6144 + 3072, 3072)]
    assert LAYOUT.byte_range(5, 3) == (5 * 6144 + 3 * 1536, 1536)


def test_neighbouring_blocks_touch() -> None:
    first, second = LAYOUT.byte_range(1), LAYOUT.byte_range(2)
    assert first.offset_bytes + first.num_bytes == second.offset_bytes


@pytest.mark.parametrize(("block", "first", "count"), [(-1, 0, 1), (0, 3, 2), (0, -1, 1)])
def test_a_range_outside_the_block_is_our_bug(block: int, first: int, count: int) -> None:
    with pytest.raises(AssertionError):
        LAYOUT.byte_range(block, first, count)


def test_a_spec_without_layers_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="num_layers"):
        AttentionSpec(num_layers=0, num_kv_heads=1, head_dim=1, dtype_bytes=1)
