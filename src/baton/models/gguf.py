"""Weights of a GGUF file under their Hugging Face names, dequantised to float32, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from baton.core.errors import ModelError
from baton.core.model_config import ModelConfig
from baton.models.gguf_config import gguf_config
from baton.models.gguf_names import Parameter, Transform, parameter_of
from baton.models.gguf_tensors import check_types, dequantize, dequantized, raw
from baton.text.gguf_file import GgufFile, TensorInfo, read_gguf

__all__ = ["gguf_config", "gguf_weights"]


def gguf_weights(path: Path, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, float32 tensor) of every parameter, in file order. `lm_head.weight` is absent when embeddings are tied.

    The header is checked at once, tensors are read as the iterator advances.

    Args:
        config: of the same file, as `gguf_config` gives it.

    Raises:
        ModelError: a tensor that cannot be dequantised, belongs to no supported model or lies beyond the file's end.
    """
    file = read_gguf(path)
    check_types(file)
    permuted = file.require("general.architecture", str) == "llama"
    plan = [(info, parameter_of(info.name, permuted=permuted)) for info in file.tensors.values()]
    return _tensors(file, config, [(info, parameter) for info, parameter in plan if parameter is not None])


def _tensors(
    file: GgufFile, config: ModelConfig, plan: list[tuple[TensorInfo, Parameter]]
) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {Transform.UNPERMUTE_Q: config.num_heads, Transform.UNPERMUTE_K: config.num_kv_heads}
    for info, parameter in plan:
        if parameter.transform is Transform.SPLIT_EXPERTS:
            yield from _experts(file, info, parameter)
            continue
        values = dequantized(file, info)
        if parameter.transform in heads:
            values = _unpermute(values, heads[parameter.transform], info.name)
        yield parameter.name, torch.from_numpy(values)


def _experts(file: GgufFile, info: TensorInfo, parameter: Parameter) -> Iterator[tuple[str, torch.Tensor]]:
    """Fused experts [E, out, in], one expert at a time: a whole tensor in float32 can be gigabytes."""
    for expert, data in enumerate(raw(file, info)):
        yield parameter.name.format(expert=expert), torch.from_numpy(dequantize(data, info))


def _unpermute(values: NDArray[np.float32], heads: int, name: str) -> NDArray[np.float32]:
    """Rows of each head from pairs (x0, y0, x1, y1, ..), ggml's rope order, to halves (x0, x1, .., y0, y1, ..)."""
    rows = values.shape[0]
    if rows % (2 * heads):
        raise ModelError(f"tensor {name} has {rows} rows, which do not divide into {heads} heads of even size")
    pairs = values.reshape(heads, rows // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
