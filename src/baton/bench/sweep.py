"""Runs a sweep: one result file and one log a run; what is there already is not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from baton.bench.arrivals import Steady
from baton.bench.asks import RandomTokens
from baton.bench.case import RunName
from baton.bench.local_fleet import running, up_command
from baton.bench.result import Result, read, write
from baton.bench.run import Target, run
from baton.bench.sweep_plan import Grid, seed_of
from baton.bench.words import summary_lines
from baton.bench.workload import WorkloadOptions
from baton.core.errors import ConfigError

_FACTS = "sweep.json"
_HANDS_OVER = ("push", "pull")

Serve = Callable[[str, int], AbstractContextManager[str]]
"""(mode, iteration) -> the URL of a server of that mode, for as long as the block lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What every run of a sweep has in common.

    Attributes:
        prompts: their lengths are the grid's.
        target: its URL is the server's of the mode.
        facts: what else tells this sweep from another, such as model and flags of its fleets.
    """

    grid: Grid
    folder: Path
    prompts: RandomTokens
    target: Target
    count: int = 100
    num_warm_up: int = 2
    burstiness: float = 1.0
    seed: int = 0
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """Whatever must not change within a folder; rates, lengths and iterations may be added."""
        lengths = {"ratio": self.prompts.inputs.ratio, "rule": self.prompts.inputs.rule.value}
        found = {
            "requests": self.count,
            "warm_up": self.num_warm_up,
            "burstiness": self.burstiness,
            "seed": self.seed,
            "range": lengths,
            "token_ids": [self.prompts.low_id, self.prompts.high_id],
            **self.facts,
        }
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return plain


def sweep(options: SweepOptions, serve: Serve, say: Callable[[str], None]) -> int:
    """Run what is not there yet; returns how many runs that was.

    Raises:
        ConfigError: the folder holds another sweep, or a server cannot be measured. Start again to go on.
    """
    _claim(options)
    blocks = list(options.grid.blocks())
    total, done, made = sum(map(len, blocks)), 0, 0
    for block in blocks:
        missing = [name for name in block if not _is_there(options.folder, name)]
        done += len(block) - len(missing)
        if not missing:
            continue
        with serve(missing[0].mode, missing[0].iteration) as url:
            for name in missing:
                done, made = done + 1, made + 1
                say(f"[{done}/{total}] {name}")
                result = uvloop.run(_one(options, name, url, f"{done}/{total}"))
                _keep(options.folder, name, result)
                say(f"    {_short(result)}")
    return made


async def _one(options: SweepOptions, name: RunName, url: str, label: str) -> Result:
    case, prompts = name.case, options.prompts
    inputs = replace(prompts.inputs, tokens=case.input_tokens)
    outputs = replace(prompts.outputs, tokens=case.output_tokens)
    workload = WorkloadOptions(
        data=replace(prompts, inputs=inputs, outputs=outputs),
        arrivals=Steady(rate=case.qps, burstiness=options.burstiness),
        count=options.count,
        num_warm_up=options.num_warm_up,
        seed=seed_of(name, options.seed),
    )
    facts = {"iter": name.iteration, "sweep": options.identity()}
    result = await run(replace(options.target, url=url), workload, slo_ms=options.slo_ms, facts=facts, label=label)
    if result["mode"] in _HANDS_OVER and name.mode in _HANDS_OVER and result["mode"] != name.mode:
        raise ConfigError(f"the engines behind {url} {result['mode']}, but were named as those that {name.mode}")
    return {**result, "mode": name.mode}


def _claim(options: SweepOptions) -> None:
    """Make the folder this sweep's."""
    options.folder.mkdir(parents=True, exist_ok=True)
    path, identity = options.folder / _FACTS, options.identity()
    if path.exists():
        before = msgspec.json.decode(path.read_bytes())
        differing = [key for key in {**before, **identity} if before.get(key) != identity.get(key)]
        if differing:
            raise ConfigError(f"{options.folder} holds a sweep with another {', '.join(differing)}: take a new folder")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(identity)) + b"\n")


def _is_there(folder: Path, name: RunName) -> bool:
    path = folder / f"{name}.json"
    if not path.exists():
        return False
    read(path)
    return True


def _keep(folder: Path, name: RunName, result: Result) -> None:
    (folder / f"{name}.log").write_text("\n".join(summary_lines(result)) + "\n")
    write(result, folder / f"{name}.json")  # last: the log of a result is complete


def _short(result: Result) -> str:
    ttft, tpot = result["median_ttft_ms"], result["median_tpot_ms"]
    figures = "no request ended well" if ttft is None else f"TTFT {ttft:.0f} ms, TPOT {tpot or 0:.1f} ms (medians)"
    failed = f", {result['failed']} FAILED" if result["failed"] else ""
    return "\n    ".join([figures + failed, *(f"WARNING: {warning}" for warning in result["warnings"])])


def at_urls(urls: Mapping[str, str]) -> Serve:
    """Servers that run already, by mode."""

    def serve(mode: str, iteration: int) -> AbstractContextManager[str]:
        del iteration
        return nullcontext(urls[mode])

    return serve


def of_up(model: str, flags: tuple[str, ...], folder: Path) -> Serve:
    """A fresh fleet of `baton up` for each block; its output and its logs are kept under `folder`/fleets."""

    @contextmanager
    def serve(mode: str, iteration: int) -> Iterator[str]:
        logs = folder / "fleets" / f"{mode}_iter{iteration}"
        logs.mkdir(parents=True, exist_ok=True)
        with running(up_command(model, mode, ("--log-dir", str(logs), *flags)), logs / "up.log") as url:
            yield url

    return serve
