"""Loads a model into a runner: device, weights, cache size, storage. Runs in the thread that will run the steps."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.cache.layout import BlockLayout
from baton.core.config import LoadFormat
from baton.core.errors import ConfigError
from baton.core.model_config import ModelConfig
from baton.engine.grammar import GrammarCompiler
from baton.engine.options import EngineOptions
from baton.engine.runner import ModelRunner
from baton.engine.sizing import CacheSize, size_cache
from baton.engine.storage import allocate_kv
from baton.kernels.select import select_kernels
from baton.models.loader import load_model
from baton.obs.log import get_logger
from baton.text.tokenizer import Tokenizer

_log = get_logger(__name__)

_CPU_BLOCK_TOKENS = 16
_GPU_BLOCK_TOKENS = 64
_CPU_CACHE_BYTES = 4 * 2**30
_CPU_MEMORY_SHARE = 0.25
_GPU_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRunner:
    """A runner and the facts it was made from.

    Attributes:
        kv: the runner's pool, as of `storage.allocate_kv`.
        grammars: compiles constraints; None without a tokenizer.
        dtype: of weights, activations and KV, as a key of DTYPE_BYTES.
        fingerprint: of the model as it is served, see ModelConfig.fingerprint.
        weights_digest: of the checkpoint.
    """

    runner: ModelRunner
    kv: Tensor
    config: ModelConfig
    layout: BlockLayout
    size: CacheSize
    grammars: GrammarCompiler | None
    eos_token_ids: frozenset[int]
    dtype: str
    fingerprint: str
    weights_digest: str


def load_runner(options: EngineOptions, device: str, tokenizer: Tokenizer | None) -> LoadedRunner:
    """Load the weights and allocate the cache.

    Raises:
        ConfigError: options that cannot work.
        ModelError: a model that cannot be served.
    """
    kernels = select_kernels(device)
    loaded = load_model(
        Path(options.model),
        device=device,
        dtype=options.dtype,
        load_format=LoadFormat(options.load_format),
        kernels=kernels,
        max_model_len=options.max_model_len,
        seed=options.seed,
    )
    config, dtype = loaded.config, str(loaded.dtype).removeprefix("torch.")
    (spec,) = loaded.model.cache_specs()
    layout = BlockLayout(spec, options.block_size or (_CPU_BLOCK_TOKENS if device == "cpu" else _GPU_BLOCK_TOKENS))
    size = _size(options, loaded.max_model_len, layout, device)
    eos_token_ids = frozenset(config.eos_token_ids) | (tokenizer.eos_token_ids if tokenizer else frozenset())
    grammars = (
        None
        if tokenizer is None
        else GrammarCompiler(tokenizer.backend, eos_token_ids=eos_token_ids, vocab_size=config.vocab_size)
    )
    kv = allocate_kv(layout, size.num_blocks, device=device, dtype=loaded.dtype)
    runner = ModelRunner(
        model=loaded.model,
        kv=kv,
        kernels=kernels,
        vocab_size=config.vocab_size,
        num_slots=options.max_num_seqs,
        max_model_len=size.max_model_len,
        grammars=grammars,
    )
    _log.info("%s from %s, %s on %s", config.architecture, options.model, dtype, device)
    _log_size(layout, size)
    return LoadedRunner(
        runner=runner,
        kv=kv,
        config=config,
        layout=layout,
        size=size,
        grammars=grammars,
        eos_token_ids=eos_token_ids,
        dtype=dtype,
        fingerprint=config.fingerprint(dtype),
        weights_digest=loaded.weights_digest,
    )


def resolve_device(device: str) -> str:
    """ "auto" becomes the GPU if there is one, else the CPU.

    Raises:
        ConfigError: the device does not exist here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise ConfigError(f"device must be cpu, cuda, cuda:N or auto, got {device!r}")
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"device={device} asked for, but torch sees {count} GPUs; use device=cpu or another number")
    return device


def _size(options: EngineOptions, model_max_len: int, layout: BlockLayout, device: str) -> CacheSize:
    if device == "cpu":
        memory_bytes = min(_CPU_CACHE_BYTES, int(_CPU_MEMORY_SHARE * _available_memory_bytes()))
    else:
        memory_bytes = int(_GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0])
    return size_cache(
        block_tokens=layout.block_tokens,
        bytes_per_token=layout.token_bytes,
        memory_bytes=memory_bytes,
        kv_cache_tokens=options.kv_cache_tokens,
        max_model_len=options.max_model_len,
        model_max_len=model_max_len,
        max_num_seqs=options.max_num_seqs,
    )


def _available_memory_bytes() -> int:
    """Memory that can be had without swapping: free, or held by caches (Linux; elsewhere what is free)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (kib,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kib) * 1024


def _log_size(layout: BlockLayout, size: CacheSize) -> None:
    tokens = size.num_blocks * layout.block_tokens
    _log.info(
        "KV cache: %d tokens in %d blocks of %d, %.2f GiB; maximum concurrency at max_model_len %d: %.2f sequences",
        tokens,
        size.num_blocks,
        layout.block_tokens,
        size.num_blocks * layout.block_bytes / 2**30,
        size.max_model_len,
        tokens / size.max_model_len,
    )
