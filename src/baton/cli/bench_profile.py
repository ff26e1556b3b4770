"""`baton bench profile`: where the time of one request goes, on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.bench_run import ApiKey, Model, TokenIds
from baton.core.errors import ConfigError
from baton.core.handoff import TransferMode

if TYPE_CHECKING:
    from baton.bench.one_request import Profiled

_BAR_COLUMNS = 48


def profile(
    url: Annotated[
        str | None, typer.Argument(help="A Baton router; or else give --prefill and --decode.", show_default=False)
    ] = None,
    prefill: Annotated[str | None, typer.Option(help="URL of an engine that prefills.", show_default=False)] = None,
    decode: Annotated[str | None, typer.Option(help="URL of an engine that decodes.", show_default=False)] = None,
    pull: Annotated[bool, typer.Option("--pull", help="With --prefill and --decode: pull, instead of push.")] = False,
    prompt: Annotated[str | None, typer.Option(help="Instead of random token ids.")] = None,
    input_tokens: Annotated[int, typer.Option(help="Length of the random prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 16,
    token_ids: TokenIds = "100:1000",
    warm_up: Annotated[int, typer.Option(help="Requests before the one that is shown.")] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Of random prompts; by default fresh ones, of which no engine has a prefix.")
    ] = None,
    model: Model = None,
    api_key: ApiKey = None,
    output: Annotated[Path | None, typer.Option(help="Trace file for Perfetto or chrome://tracing.")] = None,
) -> None:
    """A waterfall of one request: its queue, prefill, transfer and first steps, as the engines saw them."""
    import numpy as np
    import uvloop

    from baton.cli.bench_run import id_range

    if (url is None) == (prefill is None or decode is None):
        raise ConfigError("give the URL of a router, or both --prefill and --decode")
    if url is not None and pull:
        raise ConfigError("--pull is for --prefill and --decode; a router has its own --mode")
    rng = np.random.default_rng(seed)
    bodies = [
        {
            "prompt": prompt if prompt is not None else rng.integers(*id_range(token_ids), size=input_tokens).tolist(),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        for _ in range(warm_up + 1)
    ]
    urls = (url,) if url is not None else (str(prefill), str(decode))
    mode = TransferMode.PULL if pull else TransferMode.PUSH
    profiled = uvloop.run(_profile(urls, bodies, mode, model, api_key))
    _show(profiled)
    if output is not None:
        output.write_text(json.dumps(profiled.trace))
        print(f"written to {output}")


async def _profile(
    urls: tuple[str, ...], bodies: list[dict[str, Any]], mode: TransferMode, model: str | None, api_key: str | None
) -> Profiled:
    from contextlib import AsyncExitStack

    from baton.bench.client import Client, NoAnswerError
    from baton.bench.one_request import through_pair, through_router
    from baton.bench.scrape import first_model

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(url, api_key=api_key)) for url in urls]
        try:
            name = model or await first_model(clients[0])
            for body in bodies:
                asked = {**body, "model": name}
                if len(clients) == 1:
                    profiled = await through_router(clients[0], asked)
                else:
                    profiled = await through_pair(clients[0], clients[1], asked, mode)
        except NoAnswerError as error:
            raise ConfigError(str(error)) from error
    return profiled


def _show(profiled: Profiled) -> None:
    from rich.console import Console
    from rich.table import Table

    from baton.bench.waterfall import bars, lines

    table = Table(box=None, pad_edge=False)
    for heading in ("seen by", "span", "", "start + duration"):
        table.add_column(heading, no_wrap=heading != "start + duration")
    for where, name, bar, told in lines(bars(profiled.trace), _BAR_COLUMNS):
        table.add_row(where, name, f"[cyan]{bar}[/]", told)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=180)
    console.print(f"transfer_id {profiled.transfer_id}")
    console.print(table)
    console.print(
        f"client: first piece after {profiled.first_ms:.1f} ms, last of {profiled.num_pieces} "
        f"after {profiled.last_ms:.1f} ms"
    )
