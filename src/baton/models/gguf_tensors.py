"""Tensor data of a GGUF file as float32 numpy arrays, mapped from disk and dequantised one at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from baton.core.errors import ModelError
from baton.text.gguf_file import GgufFile, TensorInfo

_SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
_TYPES = {int(GGMLQuantizationType[name]): GGMLQuantizationType[name] for name in _SUPPORTED}


def type_name(info: TensorInfo) -> str:
    """Name of the storage type, such as "Q4_K"."""
    try:
        return str(GGMLQuantizationType(info.ggml_type).name)
    except ValueError:
        return f"number {info.ggml_type}"


def check_types(file: GgufFile) -> None:
    """Whether every tensor can be dequantised and lies inside the file.

    Raises:
        ModelError: it names the tensor and its type, and the supported types.
    """
    for info in file.tensors.values():
        if info.ggml_type not in _TYPES:
            raise ModelError(
                f"{file.path}: quantisation {type_name(info)} (tensor {info.name}) is not supported;"
                f" supported: {', '.join(_SUPPORTED)}"
            )
        block, _ = GGML_QUANT_SIZES[_TYPES[info.ggml_type]]
        if not info.shape or info.shape[-1] % block:
            raise ModelError(f"{file.path}: rows of tensor {info.name} are no multiple of {block} elements")
        end = info.offset_bytes + math.prod(_byte_shape(info))
        if end > file.size_bytes:
            raise ModelError(
                f"{file.path} is truncated: tensor {info.name} ends at byte {end} of {file.size_bytes}; get it again"
            )


def raw(file: GgufFile, info: TensorInfo) -> NDArray[np.uint8]:
    """Stored bytes [..., bytes of a row], read-only and not yet read from disk. `check_types` must have passed."""
    return np.memmap(file.path, dtype=np.uint8, mode="r", offset=info.offset_bytes, shape=_byte_shape(info))


def dequantize(data: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.float32]:
    """Bytes of some rows of `info`, [..., bytes of a row], to float32 [..., elements of a row]; always a copy."""
    values: NDArray[Any] = quants.dequantize(np.ascontiguousarray(data), _TYPES[info.ggml_type])
    return np.array(values, dtype=np.float32)


def dequantized(file: GgufFile, info: TensorInfo) -> NDArray[np.float32]:
    """The whole tensor as float32 in numpy order."""
    return dequantize(raw(file, info), info)


def _byte_shape(info: TensorInfo) -> tuple[int, ...]:
    block, size = GGML_QUANT_SIZES[_TYPES[info.ggml_type]]
    return (*info.shape[:-1], info.shape[-1] // block * size)
