"""From a Step to tensors: token and block tables by slot, positions, and the attention batch.

The token table lives on the device, so a step can read tokens that the step before it sampled without the host
ever seeing them. The block table lives on the host, which alone decides about blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton.core.step import Admission, Chunk, Step
from baton.kernels.interface import AttentionBatch, PrefillSpan

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors of one step.

    Attributes:
        token_ids, positions: int64 [T].
        last_rows: int64 [number of samples], the row each sample reads.
        sample_slots, sample_positions: int64 [number of samples], where the sampled token goes in the token table.
        first_rows: host, first row of each chunk.
    """

    token_ids: Tensor
    positions: Tensor
    last_rows: Tensor
    sample_slots: Tensor
    sample_positions: Tensor
    attention: AttentionBatch
    first_rows: tuple[int, ...]


class BatchBuilder:
    """Owns the two tables of a runner and turns steps into batches.

    Args:
        num_slots: sequences that run at once.
        max_tokens: longest sequence.
        kv: the pool whose blocks the batches address; its last block pads block tables. All batch tensors live on
            its device.
    """

    def __init__(self, *, num_slots: int, max_tokens: int, kv: Tensor) -> None:
        device, block_tokens, scratch_block = kv.device, kv.shape[4], kv.shape[0] - 1
        self.token_table = torch.zeros((num_slots, max_tokens + 1), dtype=torch.int64, device=device)
        self._blocks = np.full((num_slots, -(-max_tokens // block_tokens)), scratch_block, dtype=np.int64)
        self._block_tokens = block_tokens
        self._scratch_block = scratch_block
        self._device = device
        self._dtype = kv.dtype
        self._block_axis = torch.arange(self._blocks.shape[1] * block_tokens, device=device)

    def apply(self, step: Step) -> None:
        """Write the step's admissions and new blocks into the tables."""
        for admission in step.admissions:
            self._admit(admission)
        for chunk in step.chunks:
            if chunk.new_block_ids:
                end = chunk.first_new_block + len(chunk.new_block_ids)
                self._blocks[chunk.slot, chunk.first_new_block : end] = chunk.new_block_ids

    def _admit(self, admission: Admission) -> None:
        tokens = torch.tensor(admission.token_ids, dtype=torch.int64)
        self.token_table[admission.slot, : len(tokens)] = tokens.to(self._device)
        self._blocks[admission.slot] = self._scratch_block
        self._blocks[admission.slot, : len(admission.block_ids)] = admission.block_ids

    def build(self, step: Step) -> Batch:
        """Tensors for a step that was applied."""
        chunks = step.chunks
        lengths = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int64)
        slots = np.array([chunk.slot for chunk in chunks], dtype=np.int64)
        ends = np.cumsum(lengths)
        firsts = ends - lengths
        row_slots = np.repeat(slots, lengths)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        positions = np.arange(ends[-1]) - np.repeat(firsts - starts, lengths)
        device_positions = self._to_device(positions)
        return Batch(
            token_ids=self.token_table[self._to_device(row_slots), device_positions],
            positions=device_positions,
            last_rows=self._to_device(np.array([ends[row.chunk] - 1 for row in step.samples], dtype=np.int64)),
            sample_slots=self._to_device(np.array([row.slot for row in step.samples], dtype=np.int64)),
            sample_positions=self._to_device(np.array([row.position for row in step.samples], dtype=np.int64)),
            attention=self._attention(chunks, firsts, row_slots, positions),
            first_rows=tuple(firsts.tolist()),
        )

    def _attention(self, chunks: tuple[Chunk, ...], firsts: Ints, row_slots: Ints, positions: Ints) -> AttentionBatch:
        num_decodes = next((i for i, chunk in enumerate(chunks) if chunk.num_tokens > 1), len(chunks))
        lens = positions[:num_decodes] + 1
        width = -(-int(lens.max()) // self._block_tokens) if num_decodes else 0
        device_lens = self._to_device(lens)
        mask = (self._block_axis[: width * self._block_tokens] < device_lens[:, None])[:, None, None, :]
        bias, unseen = self._mask_forms(mask) if num_decodes > 1 and self._device.type == "cpu" else (None, None)
        return AttentionBatch(
            num_decodes=num_decodes,
            write_blocks=self._to_device(self._blocks[row_slots, positions // self._block_tokens]),
            write_offsets=self._to_device(positions % self._block_tokens),
            decode_blocks=self._to_device(self._blocks[row_slots[:num_decodes], :width]),
            decode_lens=device_lens,
            decode_mask=mask,
            decode_bias=bias,
            decode_unseen=unseen,
            prefills=tuple(
                self._span(chunk, int(first))
                for chunk, first in zip(chunks[num_decodes:], firsts[num_decodes:], strict=True)
            ),
        )

    def _mask_forms(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """AttentionBatch.decode_bias and decode_unseen."""
        hidden = ~mask
        bias = torch.zeros(mask.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)
        return bias, hidden.flatten().nonzero().flatten()

    def _span(self, chunk: Chunk, first_row: int) -> PrefillSpan:
        num_blocks = -(-(chunk.start + chunk.num_tokens) // self._block_tokens)
        return PrefillSpan(
            first_row=first_row,
            num_tokens=chunk.num_tokens,
            start=chunk.start,
            block_ids=self._to_device(self._blocks[chunk.slot, :num_blocks].copy()),
        )

    def _to_device(self, values: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
