"""Random weights from a config alone: the same model for the same seed, whatever the sharding and dtype."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from baton.models.slots import WeightSlot


def dummy_weights(slots: Mapping[str, WeightSlot], *, std: float, seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, full float32 tensor) for every slot that a checkpoint must fill: norms are 1, the rest normal(0, std).

    Each tensor has a generator of its own, keyed by seed and name.
    """
    for name, slot in slots.items():
        if slot.optional:
            continue
        tensor = torch.ones(slot.shape) if name.endswith("norm.weight") else torch.empty(slot.shape)
        if not name.endswith("norm.weight"):
            tensor.normal_(0.0, std, generator=_generator(name, seed))
        yield name, tensor


def _generator(name: str, seed: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
