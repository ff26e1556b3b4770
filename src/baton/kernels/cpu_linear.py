"""Linear layers on the CPU: weights repacked once into oneDNN's blocked layout where the CPU can use it.

Measured on two Zen 5 cores over 30 layers of cold bf16 weights: 1.3 to 1.5 times the speed of `F.linear` on 1 to 8
rows, the same at 256 rows; in float32 2 times at any number of rows. The layout does not depend on the number of rows.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.interface import LinearOp


def make_linear(weight: Tensor, bias: Tensor | None) -> LinearOp:
    """x [.., in] -> [.., out]. The plain weight is not kept when a repacked one is used instead."""
    if not can_pack(weight):
        return partial(F.linear, weight=weight, bias=bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    outputs = weight.shape[0]
    product = torch.ops.mkldnn._linear_pointwise.default

    def apply(x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_empty((*x.shape[:-1], outputs))
        result: Tensor = product(x, packed, bias, "none", [], "")
        return result

    return apply


def can_pack(weight: Tensor) -> bool:
    """Whether this torch and this CPU multiply by packed weights of this dtype, and the weight is not empty."""
    if weight.numel() == 0 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.float32:
        return True
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
