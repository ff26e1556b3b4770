"""From logits to tokens: constraints, penalties, temperature, truncation, and the draw.

Nothing in `Sampler.sample` waits for the device. A row's token depends on its own logits, parameters and history
only: the random numbers are keyed by (seed, index, position, token id), and no reduction mixes rows.

Shape letters: R rows of the step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.request import Request, TokenLogprobs
from baton.core.step import SampleRow
from baton.kernels.sampling import count_tokens, penalise, row_keys
from baton.layers.constraints import TokenMask, add_bias, constrain
from baton.layers.draw import draw_any, draw_truncated
from baton.layers.logprobs import LogprobTensors, to_host, token_logprobs
from baton.layers.sampling_slots import SlotParams, resolve, upload


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutput:
    """What one step sampled.

    Attributes:
        token_ids: int64 [R].
        logprobs: of the rows that asked for them; None when none did.
        logprob_counts: one per row, top entries wanted; None where not asked.
    """

    token_ids: Tensor
    logprobs: LogprobTensors | None
    logprob_counts: tuple[int | None, ...]

    def to_host(self) -> SampleOutput:
        """Copies in host memory. From a CUDA device they are still arriving: synchronise before reading."""
        return SampleOutput(
            token_ids=to_host(self.token_ids),
            logprobs=None if self.logprobs is None else self.logprobs.to_host(),
            logprob_counts=self.logprob_counts,
        )

    def logprob_values(self) -> tuple[TokenLogprobs | None, ...]:
        """One per row; None where not asked. Synchronises if the tensors are on a device."""
        if self.logprobs is None:
            return (None,) * len(self.logprob_counts)
        values = iter(self.logprobs.to_values([count for count in self.logprob_counts if count is not None]))
        return tuple(None if count is None else next(values) for count in self.logprob_counts)


class Sampler:
    """Samples the rows of a step by the parameters of the sequences in their slots."""

    def __init__(self, *, vocab_size: int, max_num_seqs: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: list[SlotParams | None] = [None] * max_num_seqs

    def admit(self, slot: int, request: Request, index: int) -> None:
        """Sequence `index` of the request takes the slot: forget the one before."""
        self._slots[slot] = resolve(request, index, self._vocab_size, self._device)

    def sample(
        self, logits: Tensor, rows: Sequence[SampleRow], token_table: Tensor, mask: TokenMask | None = None
    ) -> SampleOutput:
        """One token for each row.

        Args:
            logits: [R, V], row i belongs to rows[i]; left as they are.
            token_table: int [max_num_seqs, max_model_len] on the device; row.position tokens of row.slot are set.
            mask: what grammars allow.
        """
        assert logits.shape == (len(rows), self._vocab_size), logits.shape
        slots = [self._params(row.slot) for row in rows]
        raw = logits.to(torch.float32)
        logits = constrain(raw, rows, slots, token_table, mask)
        logits = add_bias(logits, slots)
        logits = apply_penalties(logits, rows, slots, token_table)
        token_ids = choose(logits, rows, slots)
        counts = tuple(slot.logprobs for slot in slots)
        return SampleOutput(token_ids=token_ids, logprobs=_logprobs(raw, token_ids, counts), logprob_counts=counts)

    def _params(self, slot: int) -> SlotParams:
        params = self._slots[slot]
        assert params is not None, f"nothing was admitted to slot {slot}"
        return params


def apply_penalties(
    logits: Tensor, rows: Sequence[SampleRow], slots: Sequence[SlotParams], token_table: Tensor
) -> Tensor:
    """Penalise the rows that ask for it; the very same logits when none does. Counts are made on the device."""
    chosen = [i for i, slot in enumerate(slots) if slot.penalised]
    if not chosen:
        return logits
    device = logits.device
    numbers = [(rows[i].slot, slots[i].prompt_len, rows[i].position) for i in chosen]
    index, prompt_lens, lengths = upload(numbers, torch.int64, device).unbind(1)
    tokens = token_table.index_select(0, index)[:, : max(rows[i].position for i in chosen)]
    places = torch.arange(tokens.shape[1], device=device)
    in_prompt = places < prompt_lens[:, None]
    in_output = (places < lengths[:, None]) & ~in_prompt
    weights = [(slots[i].repetition_penalty, slots[i].presence_penalty, slots[i].frequency_penalty) for i in chosen]
    penalised = penalise(
        _take(logits, chosen),
        count_tokens(tokens, in_prompt, logits.shape[-1]),
        count_tokens(tokens, in_output, logits.shape[-1]),
        *upload(weights, torch.float32, device).unbind(1),
    )
    return _put(logits, chosen, penalised)


def choose(logits: Tensor, rows: Sequence[SampleRow], slots: Sequence[SlotParams]) -> Tensor:
    """Tokens int64 [R] from final logits: rows are grouped by what they need, and each group is one batch."""
    greedy = [i for i, slot in enumerate(slots) if slot.greedy]
    whole = [i for i, slot in enumerate(slots) if not slot.greedy and not slot.truncated]
    truncated = [i for i, slot in enumerate(slots) if not slot.greedy and slot.truncated]
    token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    if greedy:
        token_ids = _put(token_ids, greedy, _take(logits, greedy).argmax(-1))
    for group, draw in ((whole, draw_any), (truncated, draw_truncated)):
        if group:
            members = [slots[i] for i in group]
            keys = _keys([rows[i].position for i in group], members, logits.device)
            token_ids = _put(token_ids, group, draw(_take(logits, group), keys, members))
    return token_ids


def _keys(positions: list[int], slots: list[SlotParams], device: torch.device) -> Tensor:
    streams = torch.tensor([slot.stream for slot in slots], dtype=torch.int64)
    keys = row_keys(streams, torch.tensor(positions, dtype=torch.int64))
    return keys.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else keys.to(device)


def _logprobs(raw: Tensor, token_ids: Tensor, counts: tuple[int | None, ...]) -> LogprobTensors | None:
    asked = [i for i, count in enumerate(counts) if count is not None]
    if not asked:
        return None
    k = max(count for count in counts if count is not None)
    return token_logprobs(_take(raw, asked), _take(token_ids, asked), k)


def _take(x: Tensor, rows: list[int]) -> Tensor:
    """Rows of x; x itself when they are all of them."""
    if len(rows) == x.shape[0]:
        return x
    return x.index_select(0, upload(rows, torch.int64, x.device))


def _put(x: Tensor, rows: list[int], values: Tensor) -> Tensor:
    """x with these rows replaced; the values themselves when they are all of them."""
    if len(rows) == x.shape[0]:
        return values
    return x.index_copy(0, upload(rows, torch.int64, x.device), values)
