"""A short digest of a checkpoint's values, cheap enough for every load: it tells fine-tunes of one model apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import torch
from torch import Tensor

_SAMPLES = 64  # elements of each tensor, evenly spaced
_DIGEST_BYTES = 8


class WeightsDigest:
    """Watches a checkpoint's tensors go by. Two checkpoints that differ in a sampled element, a name or a shape differ.

    It does not depend on the order of tensors, nor on how the model is sharded, nor on the device.
    """

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}

    def watch(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same tensors, each noted."""
        for name, tensor in tensors:
            self._parts[name] = _digest(name, tensor)
            yield name, tensor

    def hexdigest(self) -> str:
        """Of everything that has gone by: 16 hex digits."""
        state = blake2b(digest_size=_DIGEST_BYTES)
        for name in sorted(self._parts):
            state.update(self._parts[name])
        return state.hexdigest()


def _digest(name: str, tensor: Tensor) -> bytes:
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _SAMPLES)
    values = flat[::step][:_SAMPLES].to(dtype=torch.float32, device="cpu")
    text = f"{name} {tuple(tensor.shape)} ".encode()
    return blake2b(text + values.numpy().tobytes(), digest_size=_DIGEST_BYTES).digest()
