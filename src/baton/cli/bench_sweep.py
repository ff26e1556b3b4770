"""`baton bench sweep`: push against pull over rates and lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from baton.bench.kinds import RangeRule
from baton.cli.bench_run import ApiKey, ExtraBody, Model, RangeRatio, RequestTimeout, Rule, Seed, TokenIds, WarmUp
from baton.core.errors import ConfigError

_T = TypeVar("_T")


def sweep(
    results: Annotated[Path, typer.Option("--results-dir", help="Folder for results; a sweep in it goes on.")],
    up_flags: Annotated[
        list[str] | None,
        typer.Argument(
            help="Behind `--`: options of `baton up`, such as -- --prefill 1 --decode 2 --no-enable-prefix-caching.",
            metavar="-- UP_OPTIONS",
            show_default=False,
        ),
    ] = None,
    up: Annotated[
        str | None, typer.Option(help="Start fleets of this model with `baton up`, a fresh one for each mode and turn.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Instead: MODE=URL of a server that runs; may be repeated.", show_default=False),
    ] = None,
    modes: Annotated[str, typer.Option(help="With --up: in which order they take turns.")] = "push,pull",
    qps: Annotated[str, typer.Option(help="Requests/s.")] = "1,2,4",
    input_tokens: Annotated[str, typer.Option(help="Lengths of prompts.")] = "2048",
    output_tokens: Annotated[str, typer.Option(help="Tokens to generate.")] = "128",
    iterations: Annotated[int, typer.Option(help="Runs of every case in each mode; fewer than 3 say little.")] = 3,
    requests: Annotated[int, typer.Option(help="Of each run.")] = 100,
    burstiness: Annotated[float, typer.Option(help="1: Poisson; below 1: bursts; above: more even.")] = 1.0,
    range_ratio: RangeRatio = None,
    range_rule: Rule = RangeRule.AROUND,
    token_ids: TokenIds = "100:1000",
    model: Model = None,
    api_key: ApiKey = None,
    request_timeout_s: RequestTimeout = 600.0,
    extra_body: ExtraBody = "{}",
    goodput: Annotated[list[str] | None, typer.Option(help="Limit such as ttft:200 (ms); may be repeated.")] = None,
    warm_up: WarmUp = 2,
    seed: Seed = 0,
) -> None:
    """Measure every rate and length several times in each mode, in alternating order; start again to go on."""
    from baton.bench.metrics import parse_slo
    from baton.bench.run import Target
    from baton.bench.sweep import SweepOptions, at_urls, of_up
    from baton.bench.sweep import sweep as run_sweep
    from baton.bench.sweep_plan import Grid
    from baton.cli.bench_run import json_object, random_tokens

    if (up is None) == (not server):
        raise ConfigError("give either --up MODEL, or --server MODE=URL for each mode")
    urls, flags = _servers(server or ()), tuple(up_flags or ())
    options = SweepOptions(
        grid=Grid(
            modes=tuple(_values(modes, str, "--modes")) if up is not None else tuple(urls),
            qps=tuple(_values(qps, float, "--qps")),
            input_tokens=tuple(_values(input_tokens, int, "--input-tokens")),
            output_tokens=tuple(_values(output_tokens, int, "--output-tokens")),
            iterations=iterations,
        ),
        folder=results,
        prompts=random_tokens(1, 1, ratio=range_ratio, rule=range_rule, ids=token_ids),
        target=Target(
            url="",
            model=model,
            api_key=api_key,
            timeout_s=request_timeout_s,
            extra=json_object(extra_body, "--extra-body"),
        ),
        count=requests,
        num_warm_up=warm_up,
        burstiness=burstiness,
        seed=seed,
        slo_ms=parse_slo(goodput or ()),
        facts={"up": up, "up_flags": flags} if up is not None else {},
    )
    serve = of_up(up, flags, results) if up is not None else at_urls(urls)
    made = run_sweep(options, serve, lambda line: print(line, flush=True))
    print(f"{made} runs made; results are in {results}. Next: baton bench plot --results-dir {results}")


def _servers(terms: list[str] | tuple[str, ...]) -> dict[str, str]:
    pairs = [term.partition("=") for term in terms]
    for mode, _, url in pairs:
        if not mode or not url.startswith("http"):
            raise ConfigError(f"--server must be MODE=URL, such as push=http://127.0.0.1:8080, got {mode!r}")
    return {mode: url for mode, _, url in pairs}


def _values(text: str, kind: Callable[[str], _T], flag: str) -> list[_T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} must be a list such as 1,2,4, got {text!r}") from None
