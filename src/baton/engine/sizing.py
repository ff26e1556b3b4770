"""How large the KV cache is and how long a sequence may be. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import ConfigError

_PREFIX_SHARE = 4  # how much larger than all running sequences the default cache gets


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """A resolved size: num_blocks blocks, sequences of at most max_model_len tokens."""

    num_blocks: int
    max_model_len: int


def size_cache(
    *,
    block_tokens: int,
    bytes_per_token: int,
    memory_bytes: int,
    kv_cache_tokens: int | None,
    max_model_len: int | None,
    model_max_len: int,
    max_num_seqs: int,
) -> CacheSize:
    """Resolve what the user left open.

    Args:
        memory_bytes: what the cache may take when kv_cache_tokens is None.
        max_model_len: what the user asked for; already known to be at most model_max_len.
        model_max_len: the model's own maximum.

    A cache holds at least one sequence of max_model_len tokens: with less, that sequence could never finish. Left to
    itself it holds at most a few times what max_num_seqs of them need: the rest keeps prefixes. A length the user did
    not ask for shrinks to the memory.

    Raises:
        ConfigError: what the user asked for does not fit together.
    """
    if max_model_len is not None and max_model_len > model_max_len:
        raise ConfigError(f"max_model_len={max_model_len} exceeds the {model_max_len} positions of the model; lower it")
    length = max_model_len or model_max_len
    if kv_cache_tokens is None:
        most = _PREFIX_SHARE * max_num_seqs * _round_up(length, block_tokens)
        tokens = min(memory_bytes // bytes_per_token, most)
        source = f"the {memory_bytes / 2**30:.1f} GiB at hand hold"
    else:
        tokens = _round_up(kv_cache_tokens, block_tokens)
        source = "kv_cache_tokens allows"
    num_blocks = tokens // block_tokens
    if num_blocks * block_tokens < length:
        if max_model_len is not None or num_blocks < 1:
            raise ConfigError(
                f"{source} {num_blocks * block_tokens} tokens, less than max_model_len={length}; "
                "lower max_model_len or raise kv_cache_tokens"
            )
        length = num_blocks * block_tokens
    return CacheSize(num_blocks=num_blocks, max_model_len=length)


def _round_up(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens) * block_tokens
