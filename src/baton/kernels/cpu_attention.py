"""Attention over the paged cache on the CPU: each history is gathered once, products are batched over KV heads.

Scores are rounded to the model's dtype before the softmax, as in transformers' eager attention; the softmax itself
and every sum run in float32. In bf16 this takes 0.4 times the time of torch's fused attention on prompts (which
spends it on small products) and 0.7 to 0.9 times on batches of decodes; a single decode uses the fused one.
Places that no token was written to may hold NaN and must not reach a result.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.interface import AttentionBatch, PrefillSpan

# Queries of one prefill tile: scores stay in the cache and the upper triangle is hardly computed.
_TILE_ROWS = 128
# Scores of one tile over all heads, so that a long context does not make huge temporaries.
_TILE_SCORES = 1 << 21


def decode_attention(q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
    """q [B, N, D], kv [P, H, 2, S, D] -> [B, N, D]: one query per sequence over its history."""
    if q.shape[0] == 1:
        return _decode_one(q, kv, batch, scale)
    rows, heads, dim = q.shape
    kv_heads = kv.shape[1]
    pages = _gather(kv, batch.decode_blocks.flatten()).view(2, kv_heads, -1, dim)
    unseen = batch.decode_unseen
    if unseen is None:
        unseen = (~batch.decode_mask).flatten().nonzero().flatten()
    pages.index_fill_(2, unseen, 0.0)
    keys, values = pages.view(2, kv_heads * rows, -1, dim)
    grouped = (q * scale).view(rows, kv_heads, -1, dim).transpose(0, 1).reshape(kv_heads * rows, -1, dim)
    scores = torch.bmm(grouped, keys.mT)
    by_row = scores.view(kv_heads, rows, heads // kv_heads, -1)  # [H, B, G, W * S], batch masks are [B, 1, 1, W * S]
    if batch.decode_bias is None:
        by_row.masked_fill_(~batch.decode_mask.squeeze(1), -math.inf)
    else:
        by_row.add_(batch.decode_bias.squeeze(1))
    mixed = torch.bmm(scores.softmax(-1), values)
    return mixed.view(kv_heads, rows, -1, dim).transpose(0, 1).reshape(rows, heads, dim)


def _decode_one(q: Tensor, kv: Tensor, batch: AttentionBatch, scale: float) -> Tensor:
    """A batch of one needs no mask: its history is cut to its length."""
    kv_heads, dim = kv.shape[1], kv.shape[-1]
    length = int(batch.decode_lens[0])
    keys, values = _gather(kv, batch.decode_blocks[0]).view(2, 1, kv_heads, -1, dim)[:, :, :, :length]
    grouped = q.reshape(1, kv_heads, -1, dim)
    return F.scaled_dot_product_attention(grouped, keys, values, scale=scale).view(q.shape)


def prefill_attention(q: Tensor, kv: Tensor, span: PrefillSpan, scale: float) -> Tensor:
    """q [t, N, D] of one span, kv [P, H, 2, S, D] -> [t, N, D]; query i sees keys 0 .. start + i.

    Runs in tiles of queries; a tile reads no key behind its last query, and only its last columns need a mask.
    """
    tokens, heads, dim = q.shape
    kv_heads, start = kv.shape[1], span.start
    group = heads // kv_heads
    keys, values = _gather(kv, span.block_ids).view(2, kv_heads, -1, dim)
    by_head = (q * scale).view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3)  # [H, G, t, D]
    out = torch.empty((tokens, kv_heads, group, dim), dtype=q.dtype)
    tile = min(tokens, _tile_rows(heads * (start + tokens)))
    future = torch.full((tile, tile), -math.inf, dtype=q.dtype).triu_(1)
    for first in range(0, tokens, tile):
        count = min(tile, tokens - first)
        end = start + first + count
        queries = by_head[:, :, first : first + count].reshape(kv_heads, group * count, dim)
        scores = torch.bmm(queries, keys[:, :end].mT)
        scores.view(kv_heads, group, count, end)[..., start + first :].add_(future[:count, :count])
        mixed = torch.bmm(scores.softmax(-1), values[:, :end])
        out[first : first + count] = mixed.view(kv_heads, group, count, dim).permute(2, 0, 1, 3)
    return out.view(tokens, heads, dim)


def _tile_rows(scores_per_query: int) -> int:
    return max(16, min(_TILE_ROWS, _TILE_SCORES // scores_per_query))


def _gather(kv: Tensor, block_ids: Tensor) -> Tensor:
    """kv [P, H, 2, S, D], int64 [n] -> [2, H, n, S, D], contiguous: the only copy of a history."""
    return kv.permute(2, 1, 0, 3, 4).index_select(2, block_ids)
