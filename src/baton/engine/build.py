"""Assembles an engine from options: the one place where everything is chosen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from baton.cache.layout import BlockLayout
from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, LoadFormat, SchedulerConfig
from baton.core.errors import ConfigError, RequestError
from baton.core.model_config import ModelConfig
from baton.core.request import Request
from baton.core.validation import check_request
from baton.engine.engine import Engine
from baton.engine.executor import Executor, InlineExecutor, ThreadExecutor
from baton.engine.grammar import GrammarCompiler
from baton.engine.options import EngineOptions
from baton.engine.runner import ModelRunner
from baton.engine.sizing import CacheSize, size_cache
from baton.engine.storage import allocate_kv
from baton.kernels.select import select_kernels
from baton.models.loader import load_model
from baton.obs.log import get_logger
from baton.sched.scheduler import Scheduler
from baton.text.tokenizer import Tokenizer, load_tokenizer
from baton.wire.engine import EngineInfo

_log = get_logger(__name__)

_CPU_BLOCK_TOKENS = 16
_GPU_BLOCK_TOKENS = 64
_CPU_CACHE_BYTES = 4 * 2**30
_CPU_MEMORY_SHARE = 0.25
_GPU_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """A ready engine and what a front needs to know about it.

    Attributes:
        tokenizer: None when the model brings none.
        grammars: compiles constraints; None without a tokenizer.
        eos_token_ids: the model's end-of-sequence tokens.
        vocab_size: rows of the model's output.
        info: the same for a front in another process.
    """

    engine: Engine
    options: EngineOptions
    tokenizer: Tokenizer | None
    grammars: GrammarCompiler | None
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_model_len: int
    info: EngineInfo

    def check(self, request: Request) -> None:
        """Refuse what this engine cannot run, before it is queued.

        Raises:
            RequestError: naming the parameter.
        """
        check_request(request, vocab_size=self.vocab_size, max_model_len=self.max_model_len)
        grammar = request.params.grammar
        if grammar is not None:
            if self.grammars is None:
                raise RequestError("grammar needs a tokenizer and the model has none", param="grammar")
            self.grammars.compile(grammar)


def build_engine(options: EngineOptions) -> EngineParts:
    """Load the model, size the cache and connect scheduler, runner and executor.

    Raises:
        ConfigError: options that cannot work.
        ModelError: a model that cannot be served.
    """
    device = resolve_device(options.device)
    kernels = select_kernels(device, torch.float32)
    tokenizer = _tokenizer(options)
    loaded = load_model(
        Path(options.model),
        device=device,
        dtype=options.dtype,
        load_format=LoadFormat(options.load_format),
        kernels=kernels,
        max_model_len=options.max_model_len,
        seed=options.seed,
    )
    config = loaded.config
    dtype = str(loaded.dtype).removeprefix("torch.")
    fingerprint = config.fingerprint(dtype)
    (spec,) = loaded.model.cache_specs()
    layout = BlockLayout(spec, options.block_size or (_CPU_BLOCK_TOKENS if device == "cpu" else _GPU_BLOCK_TOKENS))
    size = _size(options, loaded.max_model_len, layout, device)
    eos_token_ids = frozenset(config.eos_token_ids) | (tokenizer.eos_token_ids if tokenizer else frozenset())
    grammars = _grammars(tokenizer, eos_token_ids, config.vocab_size)
    runner = ModelRunner(
        model=loaded.model,
        kv=allocate_kv(layout, size.num_blocks, device=device, dtype=loaded.dtype),
        kernels=kernels,
        vocab_size=config.vocab_size,
        num_slots=options.max_num_seqs,
        max_model_len=size.max_model_len,
        grammars=grammars,
    )
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=size.max_model_len,
        ),
        CacheManager(
            CacheConfig(
                block_tokens=layout.block_tokens,
                num_blocks=size.num_blocks,
                enable_prefix_caching=options.enable_prefix_caching,
                fingerprint=fingerprint,
            )
        ),
    )
    executor: Executor = ThreadExecutor(runner) if options.async_scheduling else InlineExecutor(runner)
    _log_start(options, config, layout, size, device, loaded.dtype)
    return EngineParts(
        engine=Engine(scheduler, executor, async_scheduling=options.async_scheduling),
        options=options,
        tokenizer=tokenizer,
        grammars=grammars,
        eos_token_ids=eos_token_ids,
        vocab_size=config.vocab_size,
        max_model_len=size.max_model_len,
        info=EngineInfo(
            model=options.model,
            tokenizer="" if tokenizer is None else options.tokenizer or options.model,
            architecture=config.architecture,
            dtype=dtype,
            device=device,
            fingerprint=fingerprint,
            eos_token_ids=eos_token_ids,
            vocab_size=config.vocab_size,
            max_model_len=size.max_model_len,
            max_num_seqs=options.max_num_seqs,
            block_tokens=layout.block_tokens,
            num_blocks=size.num_blocks,
        ),
    )


def _grammars(tokenizer: Tokenizer | None, eos_token_ids: frozenset[int], vocab_size: int) -> GrammarCompiler | None:
    if tokenizer is None:
        return None
    return GrammarCompiler(tokenizer.backend, eos_token_ids=eos_token_ids, vocab_size=vocab_size)


def _tokenizer(options: EngineOptions) -> Tokenizer | None:
    """The model's tokenizer; None for a model folder without one."""
    path = Path(options.tokenizer or options.model)
    if options.tokenizer is None and path.is_dir() and not (path / "tokenizer.json").exists():
        return None
    return load_tokenizer(path)


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


def _log_start(
    options: EngineOptions,
    config: ModelConfig,
    layout: BlockLayout,
    size: CacheSize,
    device: str,
    dtype: torch.dtype,
) -> None:
    tokens = size.num_blocks * layout.block_tokens
    _log.info("%s from %s, %s on %s", config.architecture, options.model, str(dtype).removeprefix("torch."), device)
    _log.info(
        "KV cache: %d tokens in %d blocks of %d, %.2f GiB; maximum concurrency at max_model_len %d: %.2f sequences",
        tokens,
        size.num_blocks,
        layout.block_tokens,
        size.num_blocks * layout.block_bytes / 2**30,
        size.max_model_len,
        tokens / size.max_model_len,
    )


def resolve_device(device: str) -> str:
    """ "auto" becomes the GPU if there is one, else the CPU.

    Raises:
        ConfigError: the device does not exist here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda, cuda:N or auto, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={device} asked for, but torch sees no GPU; use device=cpu")
    return device
