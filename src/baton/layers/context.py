"""What a forward pass needs beside token ids; passed as an argument, never a global."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from baton.kernels.interface import AttentionBatch, Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """One step as the layers see it.

    Attributes:
        positions: int64 [T], place of each token in its sequence.
        attention: where to read and write KV.
        kv: the whole pool [P, H, L, 2, S, D] (H, L of this rank); layer l's view is kv[:, :, l].
        kernels: the implementation chosen at start.
    """

    positions: Tensor
    attention: AttentionBatch
    kv: Tensor
    kernels: Kernels
