"""An engine process without a model, for tests and for measuring what is around an engine. Loads no torch.

python -m baton.engine.stub_process --channel ADDRESS --parent PID --options JSON (of StubOptions)
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import msgspec

from baton.cache.manager import CacheManager
from baton.core.config import CacheConfig, SchedulerConfig
from baton.core.errors import ConfigError
from baton.core.request import Request
from baton.core.step import Step, StepResult
from baton.core.validation import check_request
from baton.engine.engine import Engine
from baton.engine.executor import ThreadExecutor
from baton.engine.process import ServedEngine, run_process
from baton.engine.stub_runner import StubRunner
from baton.sched.scheduler import Scheduler
from baton.wire.engine import EngineInfo

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StubOptions:
    """What the stand-in pretends to be.

    Attributes:
        tokenizer: folder for the front to load; empty: none.
        eos_rate: share of samples that end a sequence, where eos_token_ids has one.
        step_s: seconds that a step takes at least.
        start_s: seconds that starting takes.
        refuse_start: message of a start that the user can mend.
        poison: a prompt that begins with this token makes its step raise.
    """

    model: str = "stub"
    tokenizer: str = ""
    vocab_size: int = 256
    eos_token_ids: frozenset[int] = frozenset()
    eos_rate: float = 0.0
    max_model_len: int = 4096
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_cache_tokens: int = 1 << 20
    step_s: float = 0.0
    start_s: float = 0.0
    refuse_start: str = ""
    poison: int | None = None


class _PacedRunner:
    """A StubRunner that takes time, and fails when told to."""

    def __init__(self, options: StubOptions) -> None:
        self._runner = StubRunner(_BLOCK_TOKENS, options.vocab_size, options.eos_rate)
        self._options = options

    def execute(self, step: Step) -> StepResult:
        """Run one step; raises RuntimeError on a poisoned prompt."""
        for admission in step.admissions:
            if admission.token_ids[0] == self._options.poison:
                raise RuntimeError("poisoned prompt\nwith a second line")
        if self._options.step_s:
            time.sleep(self._options.step_s)
        return self._runner.execute(step)


def build_stub(options: StubOptions) -> ServedEngine:
    """The engine that these options describe.

    Raises:
        ConfigError: refuse_start says so.
    """
    time.sleep(options.start_s)
    if options.refuse_start:
        raise ConfigError(options.refuse_start)
    num_blocks = -(-options.kv_cache_tokens // _BLOCK_TOKENS)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
        ),
        CacheManager(CacheConfig(block_tokens=_BLOCK_TOKENS, num_blocks=num_blocks)),
    )

    def check(request: Request) -> None:
        check_request(request, vocab_size=options.vocab_size, max_model_len=options.max_model_len)

    info = EngineInfo(
        model=options.model,
        tokenizer=options.tokenizer,
        architecture="stub",
        dtype="none",
        device="none",
        fingerprint="stub",
        eos_token_ids=options.eos_token_ids,
        vocab_size=options.vocab_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        block_tokens=_BLOCK_TOKENS,
        num_blocks=num_blocks,
        incarnation=secrets.token_hex(16),
    )
    engine = Engine(scheduler, ThreadExecutor(_PacedRunner(options)), async_scheduling=True)
    return ServedEngine(engine=engine, info=info, check=check)


if __name__ == "__main__":
    run_process(lambda text: build_stub(msgspec.json.decode(text, type=StubOptions)))
