"""From a block id to bytes: `[block][kv_head][layer][K|V][token][head_dim]`, one run of bytes a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baton.cache.spec import AttentionSpec

BlockShape = tuple[int, int, int, int, int, int]


class ByteRange(NamedTuple):
    """A run of bytes counted from the start of the pool."""

    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where the KV of a block lies. The head axis is outermost, so any range of heads is one run."""

    spec: AttentionSpec
    block_tokens: int

    @property
    def head_bytes(self) -> int:
        """Bytes of one KV head in one block: all layers, K and V, all tokens."""
        spec = self.spec
        return spec.num_layers * 2 * self.block_tokens * spec.head_dim * spec.dtype_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.spec.num_kv_heads * self.head_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one token takes."""
        return self.block_bytes // self.block_tokens

    def shape(self, num_blocks: int) -> BlockShape:
        """Shape [P, H, L, 2, S, D] of the whole pool."""
        spec = self.spec
        return (num_blocks, spec.num_kv_heads, spec.num_layers, 2, self.block_tokens, spec.head_dim)

    @property
    def strides(self) -> BlockShape:
        """Strides of `shape`, in elements; the last axis is contiguous."""
        _, heads, layers, pair, tokens, dim = self.shape(1)
        token_run = tokens * dim
        head_run = layers * pair * token_run
        return (heads * head_run, head_run, pair * token_run, token_run, dim, 1)

    def byte_range(self, block: int, first_head: int = 0, num_heads: int | None = None) -> ByteRange:
        """Bytes of heads [first_head, first_head + num_heads) of one block; all heads by default."""
        heads = self.spec.num_kv_heads - first_head if num_heads is None else num_heads
        assert block >= 0 and first_head >= 0 and heads >= 0, (block, first_head, heads)
        assert first_head + heads <= self.spec.num_kv_heads, (first_head, heads, self.spec.num_kv_heads)
        return ByteRange(block * self.block_bytes + first_head * self.head_bytes, heads * self.head_bytes)
