"""The draw: temperature, min_p, top_k, top_p, then the Gumbel-max trick.

argmax(logit / temperature + Gumbel noise) is distributed as softmax(logit / temperature) (Gumbel 1954; Maddison,
Tarlow, Minka, A* Sampling, 2014), needs no normalised probabilities, and makes tiny differences in logits change a
token almost never.

Shape letters: R rows, V vocabulary, M candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.sampling import gumbel, gumbel_at, order_keys
from baton.layers.sampling_slots import SlotParams, upload

_FIRST_WIDTH = 256
_WIDEN = 16


def draw_any(logits: Tensor, keys: Tensor, slots: Sequence[SlotParams]) -> Tensor:
    """Tokens int64 [R] from logits float32 [R, V] with noise keys int64 [R], for rows without top_k and top_p."""
    scaled = _scale(logits, slots)
    scores = gumbel(keys, logits.shape[-1]).add_(scaled)
    if any(slot.min_p > 0.0 for slot in slots):
        floors = upload([_floor(slot) for slot in slots], torch.float64, logits.device)
        scores.masked_fill_(scaled < floors[:, None], -torch.inf)
    return scores.argmax(-1)


def draw_truncated(logits: Tensor, keys: Tensor, slots: Sequence[SlotParams]) -> Tensor:
    """The same for rows with top_k or top_p, which look at the M most likely tokens only.

    Of equal tokens at the edge of a filter the lowest ids stay, so exactly top_k tokens, and exactly the smallest set
    that reaches top_p, survive. M is max(top_k) when all rows have one. Otherwise it is V, or, where looking at
    intermediate results costs nothing (CPU), it grows until no row can need a token beyond it.
    """
    scaled = _scale(logits, slots)
    filters = _filters(slots, scaled)
    vocab_size = logits.shape[-1]
    widest = max(slot.top_k for slot in slots)
    bounded = all(slot.top_k > 0 for slot in slots)
    if not bounded:
        widest = max(widest, _FIRST_WIDTH) if logits.device.type == "cpu" else vocab_size
    order = order_keys(scaled)
    while True:
        width = min(widest, vocab_size)
        ids = order.topk(width, dim=-1).indices
        values = scaled.gather(1, ids)
        keep, complete = _survivors(values, filters)
        if bounded or width == vocab_size or bool(complete.all()):
            return _race(values.masked_fill_(~keep, -torch.inf), keys, ids)
        widest *= _WIDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filters:
    """Filters of R rows on the device, each [R, 1].

    Attributes:
        top_k: float64, infinite when it keeps everything.
        floors: float64, the lowest scaled logit that min_p lets live.
        top_p: float64, infinite when it keeps everything.
        total: float64, sum of exp(scaled logit) over the vocabulary; NaN where survivors are summed instead.
    """

    top_k: Tensor
    floors: Tensor
    top_p: Tensor
    total: Tensor


def _filters(slots: Sequence[SlotParams], scaled: Tensor) -> _Filters:
    numbers = [
        (
            slot.top_k or math.inf,
            _floor(slot),
            slot.top_p if slot.top_p < 1.0 else math.inf,
            math.nan if slot.top_k or slot.min_p else 1.0,
        )
        for slot in slots
    ]
    top_k, floors, top_p, total = upload(numbers, torch.float64, scaled.device)[:, :, None].unbind(1)
    if not all(slot.top_k or slot.min_p for slot in slots):
        # softmax treats every row alike; a plain sum may split a lone row over threads, and round otherwise.
        total = total / scaled.softmax(-1).amax(-1, keepdim=True)
    return _Filters(top_k=top_k, floors=floors, top_p=top_p, total=total)


def _survivors(values: Tensor, filters: _Filters) -> tuple[Tensor, Tensor]:
    """Which of the sorted candidates [R, M] survive min_p, top_k and top_p, and whether M was wide enough [R, 1].

    top_p counts the mass among what min_p and top_k left; the token that reaches it stays.
    """
    width = values.shape[1]
    keep = (torch.arange(width, device=values.device) < filters.top_k) & (values >= filters.floors)
    cumulative = values.to(torch.float64).exp_().mul_(keep).cumsum(-1)
    reached = cumulative[:, -1:]
    goal = filters.top_p * torch.where(filters.total.isnan(), reached, filters.total)
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    # Nothing beyond M can survive when top_k or min_p ends inside it, or (no such filter) top_p was reached.
    ended = (filters.top_k <= width) | (values[:, -1:] < filters.floors)
    return keep & (before < goal), ended | (~filters.total.isnan() & (reached >= goal))


def _scale(logits: Tensor, slots: Sequence[SlotParams]) -> Tensor:
    """(logits - max) / temperature: at most 0, and never NaN however low the temperature."""
    temperatures = upload([slot.temperature for slot in slots], torch.float32, logits.device)
    return (logits - logits.amax(-1, keepdim=True)).div_(temperatures[:, None])


def _floor(slot: SlotParams) -> float:
    """p >= min_p * max(p), in logarithms, where the scaled logit of max(p) is 0."""
    return math.log(slot.min_p) if slot.min_p > 0.0 else -math.inf


def _race(scores: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """The id of the best score plus noise; of equal ones the lowest id."""
    scores = scores.add_(gumbel_at(keys, ids))
    best = scores.amax(-1, keepdim=True)
    return ids.masked_fill(scores < best, torch.iinfo(torch.int64).max).amin(-1)
