"""A result in words, for a terminal and for log files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from baton.bench.result import Result

_LATENCIES = (
    ("ttft", "time to first token"),
    ("tpot", "time per output token"),
    ("itl", "inter-token latency"),
    ("e2el", "end to end"),
    ("client_queue_time", "queue in the client"),
)
_STATISTICS = ("mean", "median", "std", "p90", "p99")


def latency_table(result: Result) -> Table:
    """Distributions in ms."""
    table = Table(box=None, pad_edge=False)
    table.add_column("ms")
    for name in _STATISTICS:
        table.add_column(name, justify="right")
    for key, name in _LATENCIES:
        table.add_row(name, *(number(result.get(f"{statistic}_{key}_ms")) for statistic in _STATISTICS))
    return table


def summary_lines(result: Result) -> Iterator[str]:
    """Counts, throughputs, hand-offs; one fact a line."""
    rate, limit = result["request_rate"], result["max_concurrency"]
    limited = "" if limit is None else f", at most {limit} in flight"
    yield f"{result['model_id']} ({result['topology'] or 'one server'}, mode {result['mode']}), rate {rate}/s{limited}"
    yield f"{result['completed']} completed, {result['failed']} failed in {result['duration']:.2f} s"
    yield (
        f"{number(result['request_throughput'])} requests/s, {number(result['output_throughput'])} output tokens/s, "
        f"{number(result['total_token_throughput'])} tokens/s in all"
    )
    if result["request_goodput"] is not None:
        limits = ", ".join(f"{name} <= {limit:g} ms" for name, limit in result["slo_ms"].items())
        yield f"goodput {number(result['request_goodput'])} requests/s ({limits})"
    if handoff := result.get("handoff"):
        yield handoff_line(handoff)
    for warning in result["warnings"]:
        yield f"WARNING: {warning}"


def handoff_line(handoff: dict[str, Any]) -> str:
    """What the hand-offs came to."""
    share, exposed = handoff["early_share"], handoff["exposed_ms"]
    parts = [f"{handoff['transfers']} hand-offs of {number(handoff['bytes'] / 1e6)} MB"]
    if share is not None:
        parts.append(f"{share:.0%} sent before prefill ended")
    if exposed:
        parts.append("exposed " + " / ".join(f"{name} {number(value)} ms" for name, value in exposed.items()))
    parts.append(f"{handoff['failures']} failed, {handoff['fallbacks']} fell back")
    return ", ".join(parts)


def number(value: float | None) -> str:
    """With as many digits as one reads; "-" for none."""
    return "-" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"
