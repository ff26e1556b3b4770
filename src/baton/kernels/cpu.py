"""The kernels for CPUs: packed weights, few launches a layer, batched decode attention.

Same meaning as the torch twin; shapes are those of `interface.Kernels`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.cpu_attention import decode_attention, prefill_attention
from baton.kernels.cpu_linear import make_linear
from baton.kernels.interface import AttentionBatch, LinearOp


class CpuKernels:
    """`Kernels` for a CPU in any floating dtype; fastest in bfloat16 where the CPU has it."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        """Packs the weight if this CPU can use that; the caller should drop its own reference."""
        return make_linear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last axis, computed in float32 and rounded once."""
        return torch.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The sum is rounded to the dtype of the residual stream, then normalised."""
        total = x + residual
        return torch.rms_norm(total, weight.shape, weight, eps), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Turns q and k as one tensor; the results are views of it. Fastest with cos, sin in the dtype of q."""
        heads, dim, half = q.shape[1], q.shape[2], cos.shape[-1]
        both = _adjoin(q, k)
        cos, sin = cos.unsqueeze(1).to(both.dtype), sin.unsqueeze(1).to(both.dtype)
        a, b = both[..., :half], both[..., half : 2 * half]
        parts = [(a * cos).addcmul_(b, sin, value=-1), (b * cos).addcmul_(a, sin)]
        if 2 * half < dim:
            parts.append(both[..., 2 * half :])
        turned = torch.cat(parts, dim=-1)
        return turned[:, :heads], turned[:, heads:]

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of the last axis."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def store_kv(self, k: Tensor, v: Tensor, kv: Tensor, batch: AttentionBatch) -> None:
        """One indexed write for K and V together."""
        places = kv.permute(0, 3, 1, 2, 4)  # [P, S, H, 2, D]
        places.index_put_((batch.write_blocks, batch.write_offsets), torch.stack((k, v), dim=2).to(kv.dtype))

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
        """Decodes in one batch, prefills span by span."""
        decodes = batch.num_decodes
        parts = [decode_attention(q[:decodes], kv, batch, scale)] if decodes else []
        for span in batch.prefills:
            rows = q[span.first_row : span.first_row + span.num_tokens]
            parts.append(prefill_attention(rows, kv, span, scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def moe(self, x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Tokens sorted by expert, one pair of products per expert that is hit, the sum over experts in float32."""
        tokens, per_token = experts.shape
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=gate_up.shape[0]).tolist()
        rows = torch.split(x[order // per_token], counts)
        results = [
            F.linear(self.silu_mul(F.linear(part, gate_up[expert])), down[expert])
            for expert, part in enumerate(rows)
            if counts[expert]
        ]
        unsorted = torch.empty((tokens * per_token, x.shape[1]), dtype=torch.float32)
        unsorted[order] = torch.cat(results).float()
        mixed = torch.bmm(weights.float().unsqueeze(1), unsorted.view(tokens, per_token, -1))
        return mixed.squeeze(1).to(x.dtype)


def _adjoin(q: Tensor, k: Tensor) -> Tensor:
    """q [T, N, D] and k [T, H, D] as one [T, N + H, D], without a copy where k follows q in the same memory.

    That is so when both are slices of one fused q, k, v product.
    """
    tokens, heads, dim = q.shape
    follows = (
        q.stride() == k.stride()
        and q.stride()[1:] == (dim, 1)
        and k.data_ptr() == q.data_ptr() + heads * dim * q.element_size()
        and k.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    )
    return q.as_strided((tokens, heads + k.shape[1], dim), q.stride()) if follows else torch.cat((q, k), dim=1)
