"""Root-mean-square norm with a learned scale; held whole on every rank."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.interface import Kernels


class RmsNorm:
    """Over the last axis, `width` wide."""

    def __init__(self, width: int, eps: float, *, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(width, dtype=dtype, device=device)
        self.eps = eps

    def load(self, tensor: Tensor) -> None:
        """Copy the full weight [width]."""
        self.weight.copy_(tensor)

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        """[.., width] -> [.., width]."""
        return kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """(norm of x + residual, x + residual): one step along the residual stream."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)
