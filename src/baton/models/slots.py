"""Where checkpoint tensors go: names and full shapes that a model expects, and who takes each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.errors import ModelError

_LISTED = 5
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSlot:
    """One expected tensor.

    Attributes:
        shape: of the full tensor in the checkpoint, before any sharding.
        load: copies what this rank needs; does not keep the tensor.
        optional: the checkpoint may leave it out.
    """

    shape: tuple[int, ...]
    load: Callable[[Tensor], None]
    optional: bool = False


def fill(slots: dict[str, WeightSlot], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Hand every tensor to its slot.

    Raises:
        ModelError: tensors are missing, unknown, misshapen or not floating point; names them.
    """
    unknown: list[str] = []
    missing = {name for name, slot in slots.items() if not slot.optional}
    for name, tensor in tensors:
        slot = slots.get(name)
        if slot is None:
            if not name.endswith("rotary_emb.inv_freq"):
                unknown.append(name)
            continue
        _check(name, tensor, slot)
        slot.load(tensor)
        missing.discard(name)
    if missing:
        raise ModelError(f"the checkpoint lacks {_some(sorted(missing))}")
    if unknown:
        raise ModelError(f"the checkpoint has tensors that this architecture does not use: {_some(unknown)}")


def _check(name: str, tensor: Tensor, slot: WeightSlot) -> None:
    if tuple(tensor.shape) != slot.shape:
        raise ModelError(f"{name} has shape {list(tensor.shape)}, config.json implies {list(slot.shape)}")
    if tensor.dtype not in _FLOATS:
        raise ModelError(f"{name} is {tensor.dtype}; supported: float32, bfloat16, float16 (unquantised)")


def _some(names: list[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
