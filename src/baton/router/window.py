"""What is counted of a request that ended, and what sums of it say: percentiles, means, rates, failures, links.

Pure: `tallies` makes amounts by key, `router/sliding.py` sums them up, the rest reads the sums.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from baton.router.record import RequestRecord
from baton.router.sliding import bucket, percentiles
from baton.router.timeline import PARTS, FirstTokens

Link = tuple[str, str, str]
"""Prefill worker, decode worker, mode."""

MODES = ("push", "pull", "single")
RANKS = (50, 90, 99)
LATENCIES = (*PARTS, "ttft", "whole", "tpot")
Totals = Counter[Hashable]


def tallies(
    record: RequestRecord,
    split: FirstTokens | None,
    seconds: Mapping[str, float],
    failures: Iterable[tuple[str, str]],
) -> Iterator[tuple[Hashable, int]]:
    """(key, amount) of everything there is to count of a request."""
    retried, continued = tries(record)
    yield "requests", 1
    yield ("status", record.status), 1
    yield ("mode", last_mode(record)), 1
    yield "retries", retried
    yield "continuations", continued
    yield "relayed", int(record.relayed)
    yield "streamed", int(record.stream and record.first_token_s is not None)
    yield "prompt_tokens", record.num_prompt_tokens
    yield "cached_tokens", record.num_cached_tokens
    yield "new_tokens", record.num_new_tokens
    for name, value in seconds.items():
        yield ("seconds", name, bucket(value)), 1
    if split is not None and split.first_decode is not None:
        yield from _bar(split, seconds["ttft"])
    for failure in failures:
        yield ("failure", *failure), 1
    for attempt in record.attempts:
        if attempt.prefill and attempt.decode:
            link = (attempt.prefill, attempt.decode, attempt.mode)
            yield ("transfers", link), int(attempt.landed_s is not None or attempt.outcome == "done")
            yield ("link_tokens", link), max(1, record.num_prompt_tokens)
            yield ("link_failures", link), int(attempt.outcome not in ("", "done"))


def last_mode(record: RequestRecord) -> str:
    """How it was served, or tried last; "none" when no worker was chosen."""
    return record.attempts[-1].mode if record.attempts else "none"


def tries(record: RequestRecord) -> tuple[int, int]:
    """(attempts after one that failed, from the start; attempts that went on behind tokens the client had)."""
    continued = sum(attempt.continues > 0 for attempt in record.attempts)
    return max(0, len(record.attempts) - 1 - continued), continued


def _bar(split: FirstTokens, first_token: float) -> Iterator[tuple[Hashable, int]]:
    """Only of requests with all parts, so that the means of the parts add up to the mean of the whole."""
    yield ("bar", split.mode, "count"), 1
    yield ("bar", split.mode, "first_token"), round(first_token * 1e6)
    for part, value in split.known().items():
        yield ("bar", split.mode, part), round(value * 1e6)


def window_json(totals: Totals, span_s: float) -> dict[str, Any]:
    """As JSON. Latencies in ms; rates over `span_s`."""
    kinds = _by_kind(totals)
    return {
        "requests": totals["requests"],
        "requests_per_s": totals["requests"] / span_s,
        "new_tokens_per_s": totals["new_tokens"] / span_s,
        "prompt_tokens_per_s": totals["prompt_tokens"] / span_s,
        "cached_share": _share(totals["cached_tokens"], totals["prompt_tokens"]),
        "relayed_share": _share(totals["relayed"], totals["streamed"]),
        "retries": totals["retries"],
        "continuations": totals["continuations"],
        "statuses": {str(status): count for (status,), count in kinds["status"].items()},
        "modes": {mode: count for (mode,), count in kinds["mode"].items()},
        "latency_ms": _latencies(kinds["seconds"]),
        "first_tokens_ms": _bars(kinds["bar"]),
        "failures": _failures(kinds["failure"]),
    }


def link_counts(totals: Totals) -> dict[Link, dict[str, int]]:
    """(prefill worker, decode worker, mode) -> "transfers", "link_tokens", "link_failures"."""
    kinds = _by_kind(totals)
    names = ("transfers", "link_tokens", "link_failures")
    return {link: {name: kinds[name].get((link,), 0) for name in names} for (link,) in kinds["link_tokens"]}


def _by_kind(totals: Totals) -> defaultdict[str, dict[Any, int]]:
    """Of the keys that are tuples: the first member -> the others -> sum."""
    kinds: defaultdict[str, dict[Any, int]] = defaultdict(dict)
    for key, count in totals.items():
        if isinstance(key, tuple):
            kinds[key[0]][key[1:]] = count
    return kinds


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _latencies(sums: Mapping[tuple[str, int], int]) -> dict[str, dict[str, float]]:
    counts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (name, number), count in sums.items():
        counts[name].append((number, count))
    found = {name: percentiles(counts[name], RANKS) for name in LATENCIES}
    return {
        name: {
            **{f"p{rank}": value * 1e3 for rank, value in zip(RANKS, values, strict=True)},
            "count": sum(count for _, count in counts[name]),
        }
        for name, values in found.items()
        if values is not None
    }


def _bars(sums: Mapping[tuple[str, str], int]) -> dict[str, dict[str, float]]:
    """Mode -> means in ms of each part, their sum "total", "first_token" (when the client had it), and "count"."""
    bars = {}
    for mode in MODES:
        count = sums.get((mode, "count"), 0)
        if count:
            means = {part: sums.get((mode, part), 0) / count / 1e3 for part in (*PARTS, "first_token")}
            bars[mode] = {**means, "total": sum(means[part] for part in PARTS), "count": count}
    return bars


def _failures(sums: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The most frequent first."""
    found = [{"of": what, "cause": cause, "count": count} for (what, cause), count in sums.items()]
    return sorted(found, key=lambda each: (-each["count"], each["of"], each["cause"]))
