"""Which tokens a row may produce at all, and logit_bias.

Constraints can contradict each other (a finished grammar allows only the end, min_tokens forbids it). Then the
weaker one yields for that row: grammar, then allowed_token_ids, then bad_words and min_tokens. A row therefore
never runs out of tokens, and a grammar is never violated.

Every function returns new logits float32 [R, V]; `rows` and `slots` run in parallel over R.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.step import SampleRow
from baton.kernels.sampling import mask_by_bits
from baton.layers.sampling_slots import BadWords, SlotParams, upload


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMask:
    """Tokens that grammars allow.

    Attributes:
        rows: rows of the step that have a grammar.
        bits: int32 [len(rows), ceil(V / 32)] in host memory; bit v % 32 of word v // 32 is token v.
    """

    rows: tuple[int, ...]
    bits: Tensor


def constrain(
    logits: Tensor,
    rows: Sequence[SampleRow],
    slots: Sequence[SlotParams],
    token_table: Tensor,
    mask: TokenMask | None,
) -> Tensor:
    """Apply every constraint that a row of the step has; the very same logits when none has any.

    Args:
        token_table: int [slots, max_model_len] on the device, tokens of every sequence before the new one.
    """
    if mask is not None:
        logits = _apply_mask(logits, mask)
    if any(slot.allowed is not None for slot in slots):
        logits = _unless_empty(logits, _apply_allowed(logits, slots))
    ending = _forbidden_ends(rows, slots, logits.shape[-1])
    if ending or any(slot.bad_words is not None for slot in slots):
        narrowed = logits.clone()
        if ending:
            narrowed.view(-1).index_fill_(0, upload(ending, torch.int64, logits.device), -torch.inf)
        for i, (row, slot) in enumerate(zip(rows, slots, strict=True)):
            if slot.bad_words is not None:
                _forbid_bad_words(narrowed[i], row, slot.prompt_len, slot.bad_words, token_table)
        logits = _unless_empty(logits, narrowed)
    return logits


def add_bias(logits: Tensor, slots: Sequence[SlotParams]) -> Tensor:
    """logit_bias of every row that has one; the very same logits when none has."""
    if all(slot.bias is None for slot in slots):
        return logits
    logits = logits.clone()
    for i, slot in enumerate(slots):
        if slot.bias is not None:
            logits[i].index_add_(0, *slot.bias)
    return logits


def _apply_mask(logits: Tensor, mask: TokenMask) -> Tensor:
    bits = mask.bits.pin_memory() if logits.is_cuda else mask.bits
    bits = bits.to(logits.device, non_blocking=True)
    if len(mask.rows) == logits.shape[0]:
        return mask_by_bits(logits, bits)
    index = upload(mask.rows, torch.int64, logits.device)
    return logits.index_copy(0, index, mask_by_bits(logits.index_select(0, index), bits))


def _apply_allowed(logits: Tensor, slots: Sequence[SlotParams]) -> Tensor:
    result = logits.clone()
    for i, slot in enumerate(slots):
        if slot.allowed is not None:
            kept = logits[i].index_select(0, slot.allowed)
            result[i].fill_(-torch.inf).index_copy_(0, slot.allowed, kept)
    return result


def _forbidden_ends(rows: Sequence[SampleRow], slots: Sequence[SlotParams], vocab_size: int) -> list[int]:
    """Flat places in [R, V] of the tokens that would end a row before its min_tokens."""
    return [
        i * vocab_size + token
        for i, (row, slot) in enumerate(zip(rows, slots, strict=True))
        if row.num_output_tokens < slot.min_tokens
        for token in slot.end_ids
    ]


def _forbid_bad_words(logits: Tensor, row: SampleRow, prompt_len: int, words: BadWords, token_table: Tensor) -> None:
    """-inf in logits [V], in place, for the last token of every bad word whose other tokens end the output."""
    width = words.prefix.shape[1]
    start = max(prompt_len, row.position - width)
    tail = token_table[row.slot, start : row.position]
    # What lies before the output equals no token, so a prefix that reaches there cannot match.
    tail = torch.nn.functional.pad(tail.to(torch.int64), (width - tail.shape[0], 0), value=-2)
    matches = ((tail == words.prefix) | (words.prefix < 0)).all(-1)
    # Two bad words may share a last token: adding is safe with repeated indices, assigning is not.
    logits.index_add_(0, words.last, torch.where(matches, -torch.inf, 0.0).to(logits.dtype))


def _unless_empty(before: Tensor, after: Tensor) -> Tensor:
    """`after`, but `before` in rows where nothing is left."""
    empty = after.amax(-1, keepdim=True) == -torch.inf
    return torch.where(empty, before, after)
