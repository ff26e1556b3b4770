"""How the KV cache of one rank lies in memory, and which part of the model's KV it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGeometry:
    """A rank's pool: `[block][kv_head][layer][K|V][token][head_dim]`, one run of bytes a block.

    Attributes:
        base_address: of block 0, in the rank's address space.
        num_blocks: blocks that transfers may name.
        block_tokens: tokens of a block.
        first_head, num_heads: the KV heads it holds, numbered over the whole model.
        first_layer, num_layers: the attention layers it holds, numbered over the whole model.
        head_dim: elements of a key or a value.
        dtype_bytes: bytes of an element.
    """

    base_address: int
    num_blocks: int
    block_tokens: int
    first_head: int
    num_heads: int
    first_layer: int
    num_layers: int
    head_dim: int
    dtype_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one key (or value) of one head, layer and token."""
        return self.head_dim * self.dtype_bytes

    @property
    def head_bytes(self) -> int:
        """Bytes of one head of a block: its layers, K and V, all tokens."""
        return self.num_layers * 2 * self.block_tokens * self.token_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.num_heads * self.head_bytes
