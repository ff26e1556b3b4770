"""Result files of a comparison, found and sorted by case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baton.bench.case import Case, RunName, parse_name
from baton.bench.result import Result, read
from baton.core.errors import ConfigError

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One result file. Files of `vllm bench serve --save-detailed` will do."""

    name: RunName
    path: Path
    result: Result

    def samples_ms(self, metric: str) -> Values:
        """One value a request that went well: ttft, tpot (requests of several tokens only) or e2el.

        Raises:
            ConfigError: the file has no samples.
        """
        missing = [key for key in ("ttfts", "latencies", "output_lens", "errors") if key not in self.result]
        if "latencies" in missing and "itls" in self.result:  # before 0.32
            missing.remove("latencies")
        if missing:
            raise ConfigError(f"{self.path} has no samples ({missing[0]}); measure with --save-detailed")
        ttft = np.asarray(self.result["ttfts"], dtype=np.float64)
        whole = self._latencies(ttft)
        lengths = np.asarray(self.result["output_lens"])
        good = np.asarray([not error for error in self.result["errors"]], dtype=bool)
        found: Values
        if metric == "tpot":
            several = good & (lengths > 1)
            found = (whole - ttft)[several] / (lengths[several] - 1) * 1e3
            return found
        found = (ttft if metric == "ttft" else whole)[good] * 1e3
        return found

    def _latencies(self, ttft: Values) -> Values:
        if "latencies" in self.result:
            return np.asarray(self.result["latencies"], dtype=np.float64)
        return ttft + np.asarray([sum(gaps) for gaps in self.result["itls"]], dtype=np.float64)


Cases = Mapping[Case, Sequence[Run]]


def find(where: str) -> list[Run]:
    """The result files of a place: a file, a folder, or a folder and the beginning of names (`results/push`).

    Raises:
        ConfigError: there are none.
    """
    path = Path(where)
    if path.is_file():
        return [_run(path)]
    folder, prefix = (path, "") if path.is_dir() else (path.parent, path.name)
    runs = []
    for file in sorted(folder.glob(f"{prefix}*.json")) if folder.is_dir() else []:
        with suppress(ConfigError):  # other JSON files may lie there too
            runs.append(_run(file))
    if not runs:
        raise ConfigError(f"no result files at {where}")
    return runs


def by_mode(runs: Sequence[Run]) -> dict[str, dict[Case, list[Run]]]:
    """Runs by mode and case, repetitions in order."""
    found: defaultdict[str, defaultdict[Case, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: run.name.iteration):
        found[run.name.mode][run.name.case].append(run)
    return {mode: dict(sorted(cases.items())) for mode, cases in sorted(found.items())}


def _run(path: Path) -> Run:
    result = read(path)
    return Run(name=parse_name(path.name) or _from_facts(result), path=path, result=result)


def _from_facts(result: Mapping[str, Any]) -> RunName:
    """Of a file with another name: by what is in it."""
    good = [length for length, error in zip(result["input_lens"], result["errors"], strict=True) if not error]
    outputs = [length for length in result["output_lens"] if length]
    case = Case(
        input_tokens=round(float(np.mean(good or [0]))),
        output_tokens=round(float(np.mean(outputs or [0]))),
        qps=float(result.get("request_rate", "inf")),
    )
    return RunName(mode=str(result.get("mode", "none")), case=case, iteration=int(result.get("iter", 0)))
