"""What a user may say about an engine, before anything is resolved."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.config import LoadFormat
from baton.core.errors import ConfigError

_MOST = 2**31 - 1
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of one engine. None means: chosen from the model and the device.

    Attributes:
        model: a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a .gguf file.
        tokenizer: folder or .gguf file to take the tokenizer from, if not `model`.
        dtype: of weights, activations and KV; "auto" is the checkpoint's, bfloat16 for quantised files where the
            processor computes it natively.
        device: "cpu", "cuda", "cuda:1" or "auto".
        load_format: LoadFormat value; "dummy" makes seeded random weights from the config alone.
        block_size: tokens of a KV block (16 on CPU, 64 on a GPU).
        kv_cache_tokens: size of the KV cache in tokens, rounded up to blocks.
        max_model_len: prompt plus output tokens of one sequence.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: token budget of a step.
        enable_prefix_caching: reuse KV blocks of earlier requests with the same prefix.
        async_scheduling: plan the next step while one runs; by default on a GPU only, since on a CPU planning and
            running share the cores.
        debug_poison: fill KV blocks with a pattern before they change hands, and look for it where KV has landed; slow.
        seed: of dummy weights and of the seeds drawn for requests without one.
    """

    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    load_format: str = LoadFormat.AUTO.value
    block_size: int | None = None
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    async_scheduling: bool | None = None
    debug_poison: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        formats = [item.value for item in LoadFormat]
        if self.load_format not in formats:
            raise ConfigError(f"load_format must be one of {', '.join(formats)}, got {self.load_format!r}")
        for name in ("block_size", "kv_cache_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            optional = name in ("block_size", "kv_cache_tokens", "max_model_len")
            if value is None and optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
                raise ConfigError(f"{name} must be an integer from 1 to {_MOST}, got {value!r}")
        for name in ("enable_prefix_caching", "async_scheduling", "debug_poison"):
            if getattr(self, name) not in (True, False, None):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
