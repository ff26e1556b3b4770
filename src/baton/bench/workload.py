"""A workload: what is asked, and when. Built from options, seeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baton.bench.arrivals import Arrivals, Recorded
from baton.bench.asks import Ask, RandomTokens
from baton.bench.client import Client, NoAnswerError
from baton.bench.datafiles import choose, read_conversations, read_prompts, read_trace, trace_asks
from baton.core.errors import ConfigError

_PROMPTS, _ARRIVALS, _WARM_UP = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFile:
    """One's own prompts (JSONL). output_tokens: where a line says nothing."""

    path: Path
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGpt:
    """First turns of conversations. output_tokens: None: as many as the answer in the file has, by the server."""

    path: Path
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Lengths and shared prefixes of a trace (JSONL), filled with random token ids from low_id up to high_id."""

    path: Path
    low_id: int = 100
    high_id: int = 1000


Data = RandomTokens | PromptFile | ShareGpt | Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What a run sends.

    Attributes:
        count: requests; None: all of a trace.
        arrivals: None: closed loop.
        max_concurrency: requests in flight at most; the clients of a closed loop.
        num_warm_up: requests of the same kind before, which do not count.
        seed: of prompts, lengths and arrivals; the same seed sends the same.
    """

    data: Data
    arrivals: Arrivals
    count: int | None = 100
    max_concurrency: int | None = None
    num_warm_up: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ConfigError(f"at least 1 request must be sent, got {self.count}")
        if self.count is None and not isinstance(self.data, Trace):
            raise ConfigError("say how many requests are to be sent")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {self.max_concurrency}")
        if self.arrivals is None and self.max_concurrency is None:
            raise ConfigError("a closed loop needs --concurrency; an open one --rate")

    def facts(self) -> dict[str, Any]:
        """For the result file: every option by name."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        kinds = {"data": type(self.data).__name__, "arrivals": type(self.arrivals).__name__}
        found["kinds"] = {name: "Closed" if kind == "NoneType" else kind for name, kind in kinds.items()}
        if isinstance(self.arrivals, Recorded):
            found["arrivals"] = {"speed": self.arrivals.speed}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent. times: seconds after the start, one a request; None: closed loop."""

    asks: Sequence[Ask]
    warm_up: Sequence[Ask]
    times: Sequence[float] | None
    facts: Mapping[str, Any] = field(default_factory=dict)


async def build(options: WorkloadOptions, client: Client, model: str) -> Workload:
    """The requests of a run. Only ShareGPT without an output length asks the server anything.

    Raises:
        ConfigError: a file cannot be read.
        NoAnswerError: the server cannot count tokens (POST /tokenize).
    """
    asks = await _asks(options, options.count, _PROMPTS, client, model)
    warm_up = await _asks(options, options.num_warm_up, _WARM_UP, client, model)
    arrivals = options.arrivals
    if isinstance(arrivals, Recorded) and isinstance(options.data, Trace):
        arrivals = replace(arrivals, at_s=tuple(line.time_s for line in read_trace(options.data.path)))
    times = None if arrivals is None else arrivals.times(len(asks), rng(options.seed, _ARRIVALS)).tolist()
    return Workload(asks=asks, warm_up=warm_up, times=times, facts=options.facts())


def rng(seed: int, purpose: int) -> np.random.Generator:
    """Independent random numbers for each purpose."""
    return np.random.default_rng([seed, purpose])


async def _asks(options: WorkloadOptions, count: int | None, purpose: int, client: Client, model: str) -> Sequence[Ask]:
    numbers, data = rng(options.seed, purpose), options.data
    if isinstance(data, Trace):
        return trace_asks(read_trace(data.path)[:count], (data.low_id, data.high_id), numbers)
    assert count is not None
    if isinstance(data, RandomTokens):
        return data.make(count, numbers)
    if isinstance(data, PromptFile):
        return choose(read_prompts(data.path, data.output_tokens), count, numbers, path=data.path)
    pairs = choose(read_conversations(data.path), count, numbers, path=data.path)
    lengths = [data.output_tokens or await _count_tokens(client, model, pair.answer) for pair in pairs]
    return [Ask(prompt=pair.prompt, output_tokens=length) for pair, length in zip(pairs, lengths, strict=True)]


async def _count_tokens(client: Client, model: str, text: str) -> int:
    found = await client.ask("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
    if not isinstance(found, dict) or not isinstance(found.get("count"), int):
        raise NoAnswerError(f"{client.url}/tokenize does not count tokens; give --output-tokens")
    return max(1, int(found["count"]))
