"""From a path to a model that can run: config, dtype, length, weights, in that order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.core.config import LoadFormat
from baton.core.errors import ConfigError, ModelError
from baton.core.model_config import DTYPE_BYTES, ModelConfig
from baton.kernels.interface import Kernels
from baton.layers.shard import WHOLE, Shard
from baton.models.dummy import dummy_weights
from baton.models.registry import Model, build_model
from baton.models.slots import fill
from baton.models.weights import folder_weights, read_json
from baton.models.weights_digest import WeightsDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready for its first forward.

    Attributes:
        max_model_len: tokens of the longest sequence it can run.
        dtype: of weights, activations and KV.
        weights_digest: of the checkpoint, see `weights_digest.WeightsDigest`.
    """

    model: Model
    config: ModelConfig
    max_model_len: int
    dtype: torch.dtype
    weights_digest: str


def load_model(
    path: Path,
    *,
    device: str,
    dtype: str,
    load_format: LoadFormat,
    kernels: Kernels,
    max_model_len: int | None = None,
    shard: Shard = WHOLE,
    seed: int = 0,
) -> LoadedModel:
    """Load a model folder or a .gguf file.

    Args:
        dtype: a key of DTYPE_BYTES, or "auto" for what the checkpoint declares.
        max_model_len: None for the longest context the model was made for.
        seed: of dummy weights.

    Raises:
        ModelError: the folder or file cannot be served.
        ConfigError: dtype, max_model_len or the number of ranks does not fit the model.
    """
    load_format = resolve_format(path, load_format)
    config = load_config(path)
    torch_dtype, digest = _torch_dtype(dtype, config), WeightsDigest()
    length = _length(max_model_len, config)
    with torch.inference_mode():
        model = _empty(config, length, shard, torch_dtype, torch.device(device))
        fill(model.weight_slots(), digest.watch(_tensors(path, load_format, config, model, seed)))
        model.finalize(kernels)
    return LoadedModel(
        model=model, config=config, max_model_len=length, dtype=torch_dtype, weights_digest=digest.hexdigest()
    )


def _empty(config: ModelConfig, length: int, shard: Shard, dtype: torch.dtype, device: torch.device) -> Model:
    try:
        return build_model(config, max_model_len=length, shard=shard, dtype=dtype, device=device)
    except RuntimeError as error:  # what torch raises when an allocation fails, on a CPU and on a GPU
        reason = str(error).splitlines()[0]
        raise ModelError(f"no room for a model of this size on {device}: {reason}") from error


def resolve_format(path: Path, load_format: LoadFormat) -> LoadFormat:
    """What AUTO means for this path; other formats come back as they are.

    Raises:
        ModelError: there is nothing at the path, or the format does not fit it.
    """
    if not path.exists():
        raise ModelError(f"no model at {path}; give a folder with config.json or a .gguf file")
    gguf = _is_gguf(path)
    if load_format is LoadFormat.AUTO:
        return LoadFormat.GGUF if gguf else LoadFormat.SAFETENSORS
    if load_format is LoadFormat.GGUF and not gguf:
        raise ModelError(f"load format gguf needs a .gguf file, got {path}")
    if load_format is LoadFormat.SAFETENSORS and gguf:
        raise ModelError(f"load format safetensors needs a model folder, got {path}")
    return load_format


def load_config(path: Path) -> ModelConfig:
    """The config of a model folder or .gguf file.

    Raises:
        ModelError: unreadable or unsupported.
    """
    if _is_gguf(path):
        from baton.models.gguf import gguf_config

        return gguf_config(path)
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} has no config.json; give a model folder or a .gguf file")
    generation = path / "generation_config.json"
    return ModelConfig.from_hf(read_json(path / "config.json"), read_json(generation) if generation.is_file() else None)


def _tensors(
    path: Path, load_format: LoadFormat, config: ModelConfig, model: Model, seed: int
) -> Iterator[tuple[str, Tensor]]:
    if load_format is LoadFormat.DUMMY:
        return dummy_weights(model.weight_slots(), std=config.initializer_range, seed=seed)
    if load_format is LoadFormat.GGUF:
        from baton.models.gguf import gguf_weights

        return gguf_weights(path, config)
    return folder_weights(path)


def _is_gguf(path: Path) -> bool:
    return path.is_file() and path.suffix == ".gguf"


def _torch_dtype(name: str, config: ModelConfig) -> torch.dtype:
    name = config.dtype if name == "auto" else name
    if name not in DTYPE_BYTES:
        raise ConfigError(f"dtype {name!r} is not supported; supported: auto, {', '.join(DTYPE_BYTES)}")
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _length(asked: int | None, config: ModelConfig) -> int:
    longest = config.max_context
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise ConfigError(f"max_model_len must be 1 to {longest} for this model, got {asked}")
    return asked
