"""Configuration of one engine: frozen, complete, checked once at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from baton.core.errors import ConfigError


class LoadFormat(Enum):
    """Where weights come from. AUTO looks at the path: a .gguf file, or a folder with safetensors."""

    AUTO = "auto"
    SAFETENSORS = "safetensors"
    GGUF = "gguf"
    DUMMY = "dummy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step and of one sequence.

    Attributes:
        max_num_seqs: sequences that hold a slot at once.
        max_num_batched_tokens: token budget of a step; longer prompts are prefilled in chunks.
        max_model_len: prompt plus output tokens of one sequence.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Size and policy of the KV cache.

    Attributes:
        block_tokens: tokens of one block.
        num_blocks: blocks of the pool.
        enable_prefix_caching: reuse blocks of earlier requests with the same prefix.
        fingerprint: of the model; cached blocks are never shared across fingerprints.
    """

    block_tokens: int
    num_blocks: int
    enable_prefix_caching: bool = True
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_tokens}")
        if self.num_blocks < 1:
            raise ConfigError(f"the KV cache needs at least 1 block, got {self.num_blocks}")
