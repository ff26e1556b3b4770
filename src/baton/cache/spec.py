"""What a model asks of the cache: one spec per kind of per-token or per-sequence memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Keys and values of all full-attention layers of one rank; a model declares it by `cache_specs()`.

    Attributes:
        num_layers: full-attention layers of this rank.
        num_kv_heads: key/value heads of this rank.
        head_dim: elements of one key or value.
        dtype_bytes: bytes of one element.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "dtype_bytes"):
            assert getattr(self, name) >= 1, f"{name} must be positive, got {getattr(self, name)}"
