"""This rank's share of a tensor-parallel model, and the two collectives that layers need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from baton.core.errors import ConfigError


class Collective(Protocol):
    """Exchange between the ranks of one model; every rank makes the same calls in the same order."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks; may overwrite x."""

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate [rows, n] of all ranks, in rank order, to [rows, size * n]."""


class TorchCollective:
    """`Collective` over a torch.distributed group (gloo or NCCL).

    Drop it (and the model that holds it) before `destroy_process_group`: a gloo group that lives until the interpreter
    ends sometimes aborts the process there.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._size = dist.get_world_size(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """[rows, n] -> [rows, size * n]."""
        parts = [torch.empty_like(x) for _ in range(self._size)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size` ranks that hold one model together. The default is the whole model.

    `group` is needed when size > 1; without it the collectives return this rank's part, which is only useful to
    whoever combines parts by hand.
    """

    rank: int = 0
    size: int = 1
    group: Collective | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"rank {self.rank} of {self.size}"

    def split(self, total: int, what: str) -> int:
        """This rank's share of `total` equal things.

        Raises:
            ConfigError: it does not divide.
        """
        if total % self.size:
            raise ConfigError(f"{what}={total} cannot be split over tensor_parallel_size={self.size}")
        return total // self.size

    def part(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's view of a full tensor whose axis `dim` divides by size."""
        share = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * share, share)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks; x itself for one rank."""
        return x if self.group is None else self.group.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate the last axis over ranks; x itself for one rank."""
        return x if self.group is None else self.group.all_gather(x)


WHOLE = Shard()
"""A model on one rank."""
