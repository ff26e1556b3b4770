"""A digest of the KV that one giver rank hands to one taker rank, the same on both sides whatever their block sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from baton.core.geometry import RankGeometry
from baton.transfer.mapping import Share

_DIGEST_BYTES = 16


def kv_digest(
    read: Callable[[int, int], bytes | memoryview],
    rank: RankGeometry,
    share: Share,
    blocks: Sequence[int],
    *,
    first_token: int,
    last_token: int,
    blocks_first_token: int = 0,
) -> bytes:
    """Digest of tokens [first_token, last_token) of a share; giver and taker each call it with their own blocks.

    BLAKE2b-128 over the BLAKE2b-128 of each plane (head, layer, K|V), in this order; a plane is its bytes in order of
    tokens. Bytes of a block outside the token range do not count.

    Args:
        read: bytes at (address, length) of this rank's memory.
        blocks: block ids of tokens [blocks_first_token, ...), in order, at least to last_token.
        blocks_first_token: a multiple of the block size, unless the range is empty.
    """
    if first_token < last_token:
        assert blocks_first_token <= first_token, (blocks_first_token, first_token)
        assert last_token <= blocks_first_token + len(blocks) * rank.block_tokens, (last_token, len(blocks))
    planes = [blake2b(digest_size=_DIGEST_BYTES) for _ in range(share.num_heads * share.num_layers * 2)]
    plane_bytes = rank.block_tokens * rank.token_bytes
    head_planes = share.num_layers * 2
    share_offset = (share.first_head - rank.first_head) * rank.head_bytes
    share_offset += (share.first_layer - rank.first_layer) * 2 * plane_bytes
    for index, block in enumerate(blocks):
        block_first = blocks_first_token + index * rank.block_tokens
        start = max(first_token - block_first, 0) * rank.token_bytes
        stop = min(last_token - block_first, rank.block_tokens) * rank.token_bytes
        if start >= stop:
            continue
        for head in range(share.num_heads):
            address = rank.base_address + block * rank.block_bytes + share_offset + head * rank.head_bytes
            data = memoryview(read(address, head_planes * plane_bytes))
            for plane in range(head_planes):
                planes[head * head_planes + plane].update(data[plane * plane_bytes :][start:stop])
    return blake2b(b"".join(plane.digest() for plane in planes), digest_size=_DIGEST_BYTES).digest()
