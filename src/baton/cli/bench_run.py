"""`baton bench run URL`: one run of a load on a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.bench.kinds import Endpoint, RampShape, RangeRule
from baton.core.errors import ConfigError

if TYPE_CHECKING:
    from baton.bench.arrivals import Arrivals
    from baton.bench.asks import RandomTokens
    from baton.bench.result import Result
    from baton.bench.workload import Data

_OUTPUT_TOKENS = 128

Url = Annotated[str, typer.Argument(help="A server or a router, such as http://127.0.0.1:8000.", show_default=False)]
Model = Annotated[str | None, typer.Option(help="Served name; by default the first one.")]
ApiKey = Annotated[str | None, typer.Option(help="Key that the server asks for.", envvar="OPENAI_API_KEY")]
RequestTimeout = Annotated[float, typer.Option(help="Seconds that one answer may take.")]
Seed = Annotated[int, typer.Option(help="Of prompts, lengths and arrivals.")]
WarmUp = Annotated[int, typer.Option(help="Requests before, one after the other, that do not count.")]
TokenIds = Annotated[str, typer.Option(help="Random prompts have ids from LOW up to HIGH.", metavar="LOW:HIGH")]
ExtraBody = Annotated[str, typer.Option(help="Further fields of every request, as a JSON object.")]
RangeRatio = Annotated[
    float | None, typer.Option(help="How far lengths vary; by default 0 with the rule around, 0.8 with below.")
]
Rule = Annotated[RangeRule, typer.Option(help="around: L(1-r) to L(1+r), as vLLM; below: rL to L, as sa-bench.")]
Metadata = Annotated[
    list[str] | None, typer.Option(help="KEY=VALUE for the result file, such as mode=push.", show_default=False)
]


def run(
    url: Url,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests/s; inf sends all at once.")] = None,
    burstiness: Annotated[float, typer.Option(help="1: Poisson; below 1: bursts; above: more even.")] = 1.0,
    ramp_to: Annotated[float | None, typer.Option(help="Let the rate go from --rate to this one.")] = None,
    ramp_shape: Annotated[RampShape, typer.Option(help="By the number of the request.")] = RampShape.LINEAR,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests in flight at most; without --rate or --trace a closed loop.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="How many; by default 100, or all of a trace.")] = None,
    input_tokens: Annotated[int, typer.Option(help="Length of random prompts.")] = 512,
    output_tokens: Annotated[int | None, typer.Option(help="Tokens to generate; 128 for random prompts.")] = None,
    range_ratio: RangeRatio = None,
    range_rule: Rule = RangeRule.AROUND,
    prefix_tokens: Annotated[int, typer.Option(help="Shared tokens before every random prompt.")] = 0,
    num_prefixes: Annotated[int, typer.Option(help="Different shared prefixes.")] = 1,
    token_ids: TokenIds = "100:1000",
    prompts: Annotated[
        Path | None, typer.Option(help='JSONL of {"prompt" or "messages", "output_tokens"?}.', show_default=False)
    ] = None,
    sharegpt: Annotated[
        Path | None, typer.Option(help="ShareGPT-style conversations (JSON or JSONL).", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="JSONL of {time_s, input_tokens, output_tokens, prefix_id?, prefix_tokens?}."),
    ] = None,
    trace_speed: Annotated[float, typer.Option(help="2 plays a trace twice as fast.")] = 1.0,
    endpoint: Annotated[Endpoint, typer.Option(help="What is asked.")] = Endpoint.COMPLETIONS,
    model: Model = None,
    api_key: ApiKey = None,
    request_timeout_s: RequestTimeout = 600.0,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Generate all tokens that are asked for.")] = True,
    extra_body: ExtraBody = "{}",
    goodput: Annotated[
        list[str] | None, typer.Option(help="Limit such as ttft:200, tpot:50 or e2el:2000 (ms); may be repeated.")
    ] = None,
    warm_up: WarmUp = 2,
    seed: Seed = 0,
    metadata: Metadata = None,
    output: Annotated[Path | None, typer.Option(help="Result file (JSON), raw samples included.")] = None,
) -> None:
    """Measure latency and throughput under a load; see docs/benchmarking.md for what each figure means."""
    import uvloop

    from baton.bench.metrics import parse_slo
    from baton.bench.run import Target
    from baton.bench.run import run as measure
    from baton.bench.workload import Trace, WorkloadOptions

    random = random_tokens(
        input_tokens,
        output_tokens or _OUTPUT_TOKENS,
        ratio=range_ratio,
        rule=range_rule,
        prefixes=(num_prefixes, prefix_tokens),
        ids=token_ids,
    )
    data = _data(random, output_tokens, prompts=prompts, sharegpt=sharegpt, trace=trace)
    options = WorkloadOptions(
        data=data,
        arrivals=_arrivals(rate, burstiness, ramp_to, ramp_shape, trace, trace_speed),
        count=requests if requests is not None or isinstance(data, Trace) else 100,
        max_concurrency=concurrency,
        num_warm_up=warm_up,
        seed=seed,
    )
    target = Target(
        url=url,
        endpoint=endpoint,
        model=model,
        api_key=api_key,
        timeout_s=request_timeout_s,
        ignore_eos=ignore_eos,
        temperature=temperature,
        extra=json_object(extra_body, "--extra-body"),
    )
    result = uvloop.run(measure(target, options, slo_ms=parse_slo(goodput or ()), facts=key_values(metadata or ())))
    show_result(result, output)
    raise typer.Exit(0 if result["completed"] else 1)


def random_tokens(
    input_tokens: int,
    output_tokens: int,
    *,
    ratio: float | None,
    rule: RangeRule,
    ids: str,
    prefixes: tuple[int, int] = (1, 0),
) -> RandomTokens:
    """From what the command line says. prefixes: how many, and of how many tokens each."""
    from baton.bench.asks import Lengths, RandomTokens

    chosen = (0.8 if rule is RangeRule.BELOW else 0.0) if ratio is None else ratio
    low, high = id_range(ids)
    return RandomTokens(
        inputs=Lengths(tokens=input_tokens, ratio=chosen, rule=rule),
        outputs=Lengths(tokens=output_tokens, ratio=chosen, rule=rule),
        num_prefixes=prefixes[0],
        prefix_tokens=prefixes[1],
        low_id=low,
        high_id=high,
    )


def _data(
    random: RandomTokens, output_tokens: int | None, *, prompts: Path | None, sharegpt: Path | None, trace: Path | None
) -> Data:
    from baton.bench.workload import PromptFile, ShareGpt, Trace

    if sum(path is not None for path in (prompts, sharegpt, trace)) > 1:
        raise ConfigError("give one of --prompts, --sharegpt and --trace")
    if prompts is not None:
        return PromptFile(path=prompts, output_tokens=output_tokens or _OUTPUT_TOKENS)
    if sharegpt is not None:
        return ShareGpt(path=sharegpt, output_tokens=output_tokens)
    if trace is not None:
        return Trace(path=trace, low_id=random.low_id, high_id=random.high_id)
    return random


def _arrivals(
    rate: float | None,
    burstiness: float,
    ramp_to: float | None,
    ramp_shape: RampShape,
    trace: Path | None,
    trace_speed: float,
) -> Arrivals:
    from baton.bench.arrivals import Ramp, Recorded, Steady

    if ramp_to is not None:
        if rate is None:
            raise ConfigError("--ramp-to needs --rate: where the ramp begins")
        return Ramp(start=rate, end=ramp_to, shape=ramp_shape, burstiness=burstiness)
    if rate is not None:
        return Steady(rate=rate, burstiness=burstiness)
    return None if trace is None else Recorded(speed=trace_speed)


def id_range(text: str) -> tuple[int, int]:
    """ "LOW:HIGH" as two numbers."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal()):
        raise ConfigError(f"--token-ids must be LOW:HIGH, such as 100:1000, got {text!r}")
    return int(low), int(high)


def json_object(text: str, flag: str) -> dict[str, Any]:
    """The value of a flag that is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {text!r}")
    return value


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """["mode=push", "iter=0"] as a dict; what reads as a JSON number is one."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ConfigError(f"--metadata must be KEY=VALUE, got {pair!r}")
        try:
            found[key] = float(value) if "." in value else int(value)
        except ValueError:
            found[key] = value
    return found


def show_result(result: Result, output: Path | None) -> None:
    """On stdout, and as a file."""
    from rich.console import Console

    from baton.bench.result import write
    from baton.bench.words import latency_table, summary_lines

    console = Console(highlight=False)
    for line in summary_lines(result):
        console.print(line, style="yellow" if line.startswith("WARNING") else None, soft_wrap=True, markup=False)
    console.print(latency_table(result))
    if output is not None:
        write(result, output)
        console.print(f"written to {output}", soft_wrap=True)
