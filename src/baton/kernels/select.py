"""Which kernels run on which device; one choice at start."""

from __future__ import annotations

import torch

from baton.kernels.cpu import CpuKernels
from baton.kernels.host_memory import keep_freed_memory
from baton.kernels.interface import Kernels
from baton.kernels.torch_twin import TorchKernels


def select_kernels(device: str) -> Kernels:
    """Kernels for `device` ("cpu", "cuda", "cuda:1", ..).

    On a CPU this also asks the C library to keep freed memory. Other devices run the plain torch kernels.
    """
    if torch.device(device).type != "cpu":
        return TorchKernels()
    keep_freed_memory()
    return CpuKernels()
