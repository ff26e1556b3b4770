"""Assembles an engine from options: scheduler, executor, and what a front must know."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import RequestError
from baton.core.handoff import FailurePolicy
from baton.core.request import Request
from baton.core.validation import check_request
from baton.engine.engine import Engine
from baton.engine.executor import ThreadExecutor, runner_thread
from baton.engine.grammar import GrammarCompiler
from baton.engine.handoff_options import NO_PEERS, HandoffOptions
from baton.engine.load import LoadedRunner, load_runner, resolve_device
from baton.engine.options import EngineOptions
from baton.engine.peering import StartTransfer, facts_digest, open_peering, served_facts
from baton.engine.poison import Poison
from baton.sched.scheduler import Scheduler
from baton.text.tokenizer import Tokenizer, load_tokenizer
from baton.wire.engine import EngineInfo, PeerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """A ready engine and what a front in the same process needs beside it.

    Attributes:
        tokenizer: None when the model brings none.
        grammars: compiles constraints; None without a tokenizer.
        info: what a front in any process must know.
        start_transfer: None: no peers.
    """

    engine: Engine
    options: EngineOptions
    tokenizer: Tokenizer | None
    grammars: GrammarCompiler | None
    info: EngineInfo
    start_transfer: StartTransfer | None = None

    def check(self, request: Request) -> None:
        """Refuse what this engine cannot run, before it is queued.

        Raises:
            RequestError: naming the parameter.
        """
        check_request(request, vocab_size=self.info.vocab_size, max_model_len=self.info.max_model_len)
        if request.params.stop and self.tokenizer is None:
            raise RequestError("stop needs a tokenizer and the model has none; use stop_token_ids", param="stop")
        grammar = request.params.grammar
        if grammar is not None:
            if self.grammars is None:
                raise RequestError("grammar needs a tokenizer and the model has none", param="grammar")
            self.grammars.compile(grammar).start(request.resumed)


def build_engine(options: EngineOptions, handoff: HandoffOptions = NO_PEERS) -> EngineParts:
    """Load the model, size the cache and connect scheduler, runner and executor.

    Raises:
        ConfigError: options that cannot work.
        ModelError: a model that cannot be served.
    """
    device = resolve_device(options.device)
    tokenizer = _tokenizer(options)
    run_ahead = device != "cpu" if options.async_scheduling is None else options.async_scheduling
    thread = runner_thread()
    try:
        loaded = thread.submit(load_runner, options, device, tokenizer).result()
    except BaseException:
        thread.shutdown()
        raise
    executor = ThreadExecutor(loaded.runner, thread)
    scheduler = _scheduler(options, handoff, loaded)
    poison = Poison(loaded.runner, executor, scheduler.cache.pool) if options.debug_poison else None
    incarnation, facts = secrets.token_hex(16), served_facts(loaded, tokenizer)
    start_transfer, peer = None, None
    if handoff.role is not None:
        start_transfer, peer = open_peering(handoff, loaded, facts, incarnation)
    return EngineParts(
        engine=Engine(scheduler, executor, async_scheduling=run_ahead, poison=poison),
        options=options,
        tokenizer=tokenizer,
        grammars=loaded.grammars,
        info=_info(
            options, device, tokenizer, loaded, fingerprint=facts_digest(facts), incarnation=incarnation, peer=peer
        ),
        start_transfer=start_transfer,
    )


def _tokenizer(options: EngineOptions) -> Tokenizer | None:
    """The model's tokenizer; None for a model folder without one."""
    path = Path(options.tokenizer or options.model)
    if options.tokenizer is None and path.is_dir() and not (path / "tokenizer.json").exists():
        return None
    return load_tokenizer(path)


def _scheduler(options: EngineOptions, handoff: HandoffOptions, loaded: LoadedRunner) -> Scheduler:
    limits = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=loaded.size.max_model_len,
    )
    cache = CacheConfig(
        block_tokens=loaded.layout.block_tokens,
        num_blocks=loaded.size.num_blocks,
        enable_prefix_caching=options.enable_prefix_caching,
        fingerprint=loaded.fingerprint,
    )
    policy = None if handoff.role is None else FailurePolicy(handoff.handoff_policy)
    return Scheduler(limits, CacheManager(cache), policy)


def _info(
    options: EngineOptions,
    device: str,
    tokenizer: Tokenizer | None,
    loaded: LoadedRunner,
    *,
    fingerprint: str,
    incarnation: str,
    peer: PeerInfo | None,
) -> EngineInfo:
    return EngineInfo(
        model=options.model,
        tokenizer="" if tokenizer is None else options.tokenizer or options.model,
        architecture=loaded.config.architecture,
        dtype=loaded.dtype,
        device=device,
        fingerprint=fingerprint,
        eos_token_ids=loaded.eos_token_ids,
        vocab_size=loaded.config.vocab_size,
        max_model_len=loaded.size.max_model_len,
        max_num_seqs=options.max_num_seqs,
        block_tokens=loaded.layout.block_tokens,
        num_blocks=loaded.size.num_blocks,
        incarnation=incarnation,
        peer=peer,
    )
