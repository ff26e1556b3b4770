"""The memory of the KV cache: one tensor, one run of bytes a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.cache.layout import BlockLayout
from baton.core.errors import ConfigError
from baton.core.geometry import RankGeometry

POISON = -24576.0
"""What `poison_blocks` writes: -1.5 * 2**14, exact in bfloat16, float16 and float32, and far from real keys and values.
Not NaN: a masked place counts with probability 0, and 0 times NaN would be NaN."""


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


def poison_blocks(kv: Tensor, blocks: Sequence[int]) -> None:
    """Fill whole blocks with POISON; done when it returns, also on a GPU."""
    kv[list(blocks)] = POISON
    if kv.is_cuda:
        torch.cuda.current_stream(kv.device).synchronize()


def count_poisoned(kv: Tensor, blocks: Sequence[int], first_token: int, last_token: int) -> int:
    """Tokens [first_token, last_token) of these blocks, in order, that hold POISON anywhere."""
    poisoned = (kv[list(blocks)] == POISON).permute(0, 4, 1, 2, 3, 5).flatten(2).any(-1)
    return int(poisoned.flatten()[first_token:last_token].sum())


def kv_geometry(kv: Tensor, layout: BlockLayout) -> RankGeometry:
    """Where the pool of a single rank lies, without its scratch block."""
    spec = layout.spec
    return RankGeometry(
        base_address=kv.data_ptr(),
        num_blocks=kv.shape[0] - 1,
        block_tokens=layout.block_tokens,
        first_head=0,
        num_heads=spec.num_kv_heads,
        first_layer=0,
        num_layers=spec.num_layers,
        head_dim=spec.head_dim,
        dtype_bytes=spec.dtype_bytes,
    )


def kv_reader(kv: Tensor) -> Callable[[int, int], memoryview]:
    """Bytes of the pool at (address, length), copied from the device if need be. For any thread."""
    flat, base = kv.view(torch.uint8).flatten(), kv.data_ptr()
    return lambda address, length: memoryview(flat[address - base :][:length].cpu().numpy().data)
