"""Tensors of a model folder, one at a time, from memory-mapped safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.core.errors import ModelError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: no such file, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def folder_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor on the CPU) of every tensor in the folder; drop each before asking for the next.

    Raises:
        ModelError: files are missing or damaged; names them.
    """
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a dict)
                    yield name, opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {path}: {error}") from None


def _files(folder: Path) -> list[Path]:
    """The files of the index if there is one, else the single file."""
    if (folder / _INDEX).exists():
        names = _indexed(folder / _INDEX)
    elif (folder / _SINGLE).exists():
        names = [_SINGLE]
    else:
        raise ModelError(f"{folder} has neither {_SINGLE} nor {_INDEX}; other weight files are not read")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder} lacks weight files: {', '.join(missing)}")
    return [folder / name for name in names]


def _indexed(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelError(f"{index} points outside its folder: {', '.join(outside)}")
    return names
