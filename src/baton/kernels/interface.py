"""The interface of all compute kernels, and the batch description that attention reads.

Shape letters: T tokens of the step, B decodes, N query heads, H key/value heads, D head_dim, L layers,
P blocks of the pool, S tokens of a block, E experts, K experts per token, F ffn width, M model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

LinearOp = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpan:
    """One chunk of more than one token, or a first token.

    Attributes:
        first_row: its first row in the step's tokens.
        num_tokens: rows.
        start: tokens of the sequence already in the cache before this chunk.
        block_ids: int64 [blocks that hold start + num_tokens tokens].
    """

    first_row: int
    num_tokens: int
    start: int
    block_ids: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Where the step's tokens read and write KV. Rows [0, num_decodes) are decodes, one token each.

    Attributes:
        write_blocks, write_offsets: int64 [T], block and place in the block of each new token.
        decode_blocks: int64 [B, W], block table padded with the scratch block.
        decode_lens: int64 [B], KV tokens of each decode, the new one included.
        decode_mask: bool [B, 1, 1, W * S], True where a key may be seen.
        prefills: in row order, after the decodes.
        decode_bias: [B, 1, 1, W * S] in the dtype of KV, 0 where decode_mask, else -inf.
        decode_unseen: int64 [any], the places of decode_mask, flattened, that are False.

    The last two are decode_mask said otherwise, for kernels that would have to derive them in every layer. They may be
    None; then such kernels do derive them. Worth filling on the CPU for B > 1; not on a GPU (its size is not known
    there without waiting).
    """

    num_decodes: int
    write_blocks: Tensor
    write_offsets: Tensor
    decode_blocks: Tensor
    decode_lens: Tensor
    decode_mask: Tensor
    prefills: tuple[PrefillSpan, ...]
    decode_bias: Tensor | None = None
    decode_unseen: Tensor | None = None


class Kernels(Protocol):
    """Everything a model computes with. Implementations hold no state but prepacked weights."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        """Take a weight [out, in] for good and return the function x [.., in] -> [.., out]. May repack."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x * rsqrt(mean(x^2) + eps) * weight over the last axis; statistics in float32."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual)."""

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate halves (NeoX order) of q [T, N, D] and k [T, H, D] by cos, sin [T, R/2], R <= D rotated dims."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of the last axis."""

    def store_kv(self, k: Tensor, v: Tensor, kv: Tensor, batch: AttentionBatch) -> None:
        """Write k, v [T, H, D] into one layer's view kv [P, H, 2, S, D] (strided, last axis contiguous)."""

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
        """Causal attention of q [T, N, D] over one layer's paged kv [P, H, 2, S, D]; returns [T, N, D].

        Query head n reads key/value head n // (N // H). The step's own k, v are already stored.
        """

    def moe(self, x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """sum_k weights[t,k] * down[e] @ silu_mul(gate_up[e] @ x[t]), e = experts[t,k].

        x [T, M], gate_up [E, 2F, M], down [E, M, F], weights, experts [T, K]; returns [T, M].
        """
