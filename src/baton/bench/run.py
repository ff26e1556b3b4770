"""One run: warm up, send, gather; what comes of it is a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.bench.answer import Answer
from baton.bench.asks import Ask
from baton.bench.bodies import Asking
from baton.bench.client import Client, NoAnswerError
from baton.bench.health import client_figures, watching
from baton.bench.kinds import Endpoint
from baton.bench.load import Live, Load, Send
from baton.bench.progress import shown
from baton.bench.result import Measured, Result, result_of
from baton.bench.sample import Sample
from baton.bench.scrape import EngineView, first_model, look
from baton.bench.workload import Workload, WorkloadOptions, build
from baton.core.errors import ConfigError

_SETTLE_S = 1.2
"""A router looks at its workers every half second: after that it tells the figures of all that was sent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which server, and how it is asked.

    Attributes:
        model: None: the first one that is served.
        timeout_s: for one answer.
        extra: further fields of every request.
    """

    url: str
    endpoint: Endpoint = Endpoint.COMPLETIONS
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    ignore_eos: bool = True
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)


async def run(
    target: Target, options: WorkloadOptions, *, slo_ms: Mapping[str, float], facts: Mapping[str, Any], label: str = ""
) -> Result:
    """Measure once.

    Args:
        slo_ms: limits of goodput.
        facts: further entries of the result; they win.
        label: of the progress bar.

    Raises:
        ConfigError: the server cannot be asked in this way, or does not answer.
    """
    async with Client(target.url, api_key=target.api_key, timeout_s=target.timeout_s) as client:
        try:
            model = target.model or await first_model(client)
            workload = await build(options, client, model)
        except NoAnswerError as error:
            raise ConfigError(str(error)) from error
        asking = Asking(
            endpoint=target.endpoint,
            model=model,
            ignore_eos=target.ignore_eos,
            temperature=target.temperature,
            extra=target.extra,
        )
        measured = await _measure(client, asking, workload, options, label)
    return result_of(measured, slo_ms, facts)


async def _measure(
    client: Client, asking: Asking, workload: Workload, options: WorkloadOptions, label: str
) -> Measured:
    await _warm_up(client, asking, workload.warm_up)
    before = await _settled(client)
    send = sender(client, asking, workload.asks)
    lengths = [ask.input_tokens for ask in workload.asks]
    async with watching() as watch:
        live = Live(total=len(lengths))
        load = Load(send, lengths, live, options.max_concurrency)
        async with shown(live, label):
            samples = await (load.closed() if workload.times is None else load.open(workload.times))
        duration_s = time.perf_counter() - live.start_s
    return Measured(
        samples=samples,
        duration_s=duration_s,
        client=client_figures(watch, samples),
        before=before,
        after=await _settled(client),
        asking=asking,
        options=options,
        workload=workload.facts,
    )


async def _settled(client: Client) -> Sequence[EngineView]:
    """The engines, once their figures are those of all that was sent so far; none of other makes."""
    if not await look(client):
        return []
    await asyncio.sleep(_SETTLE_S)
    return await look(client)


def sender(client: Client, asking: Asking, asks: Sequence[Ask]) -> Send:
    """Sends these requests, whose bodies are made here and now."""
    bodies = [asking.body(ask) for ask in asks]

    async def send(index: int, answer: Answer) -> None:
        answer.error = await client.stream(asking.endpoint.path, bodies[index], answer.feed) or answer.error

    return send


async def _warm_up(client: Client, asking: Asking, asks: Sequence[Ask]) -> list[Sample]:
    """One after the other.

    Raises:
        ConfigError: the first one fails: so would all others.
    """
    send = sender(client, asking, asks)
    samples = await Load(send, [ask.input_tokens for ask in asks], Live(total=len(asks)), 1).closed()
    if samples and samples[0].error:
        raise ConfigError(f"{client.url}: the first request failed: {samples[0].error}")
    return samples
