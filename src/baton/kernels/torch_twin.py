"""The plain torch implementation of every kernel: the meaning of `Kernels`, on any device and in any dtype.

Attention and expert sums run in float32 whatever the dtype. Unwritten KV (padding, poisoned blocks) may hold NaN and
must not reach a result, so masked values are replaced, not multiplied by zero.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.interface import AttentionBatch, LinearOp, PrefillSpan

# Scores of one attention tile; longer prefills run in slices of queries (64 MiB of float32).
_MAX_SCORES = 1 << 24


class TorchKernels:
    """`Kernels` in plain torch. Holds nothing; shapes are those of `interface.Kernels`."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        """x @ weight.T + bias."""
        return partial(F.linear, weight=weight, bias=bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Statistics in float32; the normalised x is rounded to its dtype before the weight, as in transformers."""
        x32 = x.float()
        scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
        return weight * (x32 * scale).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The sum is rounded to the dtype of the residual stream, then normalised."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """(a, b) -> (a cos - b sin, b cos + a sin) for halves a, b of the rotated dimensions."""
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of the last axis."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def store_kv(self, k: Tensor, v: Tensor, kv: Tensor, batch: AttentionBatch) -> None:
        """One indexed write for K and V together."""
        both = torch.stack((k, v), dim=2)
        kv[batch.write_blocks, :, :, batch.write_offsets] = both.to(kv.dtype)

    def attention(self, q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
        """Decodes in one batch, prefills span by span."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        decodes = batch.num_decodes
        if decodes:
            out[:decodes] = _decode(q[:decodes], kv, batch, scale)
        for span in batch.prefills:
            rows = slice(span.first_row, span.first_row + span.num_tokens)
            out[rows] = _prefill(q[rows], kv, span, scale)
        return out

    def moe(self, x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """One pair of matrix products per expert that any token chose; the sum over experts in float32."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in torch.unique(experts).tolist():
            tokens, places = torch.where(experts == expert)
            hidden = F.linear(self.silu_mul(F.linear(x[tokens], gate_up[expert])), down[expert])
            out.index_add_(0, tokens, hidden.float() * weights[tokens, places, None].float())
        return out.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, N, D]; cos, sin [T, 1, R/2]. Dimensions past R are left alone."""
    half = cos.shape[-1]
    a, b, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def _decode(q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
    """q [B, N, D] -> [B, N, D]: one gather of all pages, scores of a key/value head's query group together."""
    rows, heads, dim = q.shape
    kv_heads = kv.shape[1]
    pages = kv[batch.decode_blocks].permute(3, 0, 2, 1, 4, 5)  # [2, B, H, W, S, D]
    keys, values = pages.reshape(2, rows, kv_heads, -1, dim).float()
    mask = batch.decode_mask  # [B, 1, 1, C]
    grouped = q.float().view(rows, kv_heads, heads // kv_heads, dim)
    scores = (grouped @ keys.mT).mul_(scale).masked_fill_(~mask, -torch.inf)
    values = values.masked_fill(~mask.mT, 0.0)
    mixed: Tensor = scores.softmax(-1) @ values
    return mixed.view(rows, heads, dim).to(q.dtype)


def _prefill(q: Tensor, kv: Tensor, span: PrefillSpan, scale: float) -> Tensor:
    """q [t, N, D] of one span -> [t, N, D]; query i sees keys 0 .. start + i."""
    tokens, heads, dim = q.shape
    kv_heads = kv.shape[1]
    context = span.start + span.num_tokens
    pages = kv[span.block_ids].permute(2, 1, 0, 3, 4)  # [2, H, blocks, S, D]
    keys, values = pages.reshape(2, kv_heads, -1, dim)[:, :, :context].float()
    grouped = q.float().view(tokens, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)  # [H, G, t, D]
    out = torch.empty((tokens, kv_heads, heads // kv_heads, dim), dtype=q.dtype, device=q.device)
    key_places = torch.arange(context, device=q.device)
    step = max(1, _MAX_SCORES // (heads * context))
    for first in range(0, tokens, step):
        part = grouped[:, :, first : first + step]
        count = part.shape[2]
        scores = (part.reshape(kv_heads, -1, dim) @ keys.mT).mul_(scale).view(kv_heads, -1, count, context)
        places = torch.arange(span.start + first, span.start + first + count, device=q.device)
        scores.masked_fill_(key_places > places[:, None], -torch.inf)
        mixed = scores.softmax(-1).view(kv_heads, -1, context) @ values
        out[first : first + count] = mixed.view(kv_heads, -1, count, dim).permute(2, 0, 1, 3)
    return out.view(tokens, heads, dim)
