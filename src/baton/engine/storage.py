"""The memory of the KV cache: one tensor, one run of bytes a block."""

from __future__ import annotations

import torch
from torch import Tensor

from baton.cache.layout import BlockLayout
from baton.core.errors import ConfigError


def allocate_kv(layout: BlockLayout, num_blocks: int, *, device: str, dtype: torch.dtype) -> Tensor:
    """Zeroed pool [num_blocks + 1, kv_heads, layers, 2 (K, V), block_tokens, head_dim].

    The last block is scratch: it belongs to nobody, pads block tables, and is read under a mask only. All values are
    finite from the start and stay so, because a masked probability of 0 times NaN would be NaN.

    Raises:
        ConfigError: the device has not enough memory.
    """
    shape = layout.shape(num_blocks + 1)
    try:
        return torch.zeros(shape, device=device, dtype=dtype)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        gib = (num_blocks + 1) * layout.block_bytes / 2**30
        raise ConfigError(f"no room for a KV cache of {gib:.1f} GiB on {device}; lower kv_cache_tokens") from error


def copy_blocks(kv: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
    """Copy whole blocks (source, destination), all layers at once, in stream order."""
    sources, destinations = zip(*copies, strict=True)
    kv[list(destinations)] = kv[list(sources)]
