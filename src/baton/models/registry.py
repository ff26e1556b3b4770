"""Which class runs which architecture, and what an engine may ask of a model."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton.cache.spec import AttentionSpec
from baton.core.model_config import ModelConfig, supported_architectures
from baton.kernels.interface import Kernels
from baton.layers.context import ForwardContext
from baton.layers.shard import Shard
from baton.models.slots import WeightSlot
from baton.models.transformer import Transformer


class Model(Protocol):
    """A model on one rank; see `transformer.Transformer` for shapes and errors."""

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Tensors it expects, by Hugging Face name."""

    def finalize(self, kernels: Kernels) -> None:
        """Close loading."""

    def cache_specs(self) -> tuple[AttentionSpec, ...]:
        """The cache it needs on this rank."""

    def forward(self, token_ids: Tensor, ctx: ForwardContext, rows: Tensor | None = None) -> Tensor:
        """int64 [T] -> hidden rows [T, M] after the final norm."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows [R, M] -> float32 [R, V]."""


_CLASSES: dict[str, type[Transformer]] = dict.fromkeys(supported_architectures(), Transformer)


def build_model(
    config: ModelConfig, *, max_model_len: int, shard: Shard, dtype: torch.dtype, device: torch.device
) -> Model:
    """An empty model; `ModelConfig` has already refused what has no class.

    Raises:
        ConfigError: it cannot be split over so many ranks.
    """
    return _CLASSES[config.architecture](config, max_model_len=max_model_len, shard=shard, dtype=dtype, device=device)
