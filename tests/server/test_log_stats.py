"""The line of --log-stats, and the task that logs it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from baton.core.stats import SchedulerStats
from baton.obs.figures import EngineFigures
from baton.server.log_stats import Moment, log_stats, moment, stats_line

IDLE = Moment(
    time_s=100.0,
    prompt_tokens=1000,
    generation_tokens=500,
    prefix_query_tokens=2000,
    prefix_hit_tokens=1000,
    num_running=0,
    num_waiting=0,
    kv_use=0.0,
)


def later(seconds: float = 10.0, **changes: float) -> Moment:
    return dataclasses.replace(IDLE, time_s=IDLE.time_s + seconds, **changes)  # type: ignore[arg-type]


def test_the_line_is_about_the_time_in_between() -> None:
    now = later(
        prompt_tokens=2500,
        generation_tokens=1123,
        prefix_query_tokens=2400,
        prefix_hit_tokens=1100,
        num_running=3,
        num_waiting=1,
        kv_use=0.1234,
    )
    assert stats_line(IDLE, now) == (
        "prompt 150.0 tokens/s, generation 62.3 tokens/s, running 3, waiting 1, KV use 12.3%, prefix hits 25.0%"
    )


def test_the_hit_rate_is_left_out_when_no_prompt_came() -> None:
    assert stats_line(IDLE, later(generation_tokens=510, num_running=1)) == (
        "prompt 0.0 tokens/s, generation 1.0 tokens/s, running 1, waiting 0, KV use 0.0%"
    )


def test_nothing_is_said_when_nothing_happened() -> None:
    assert stats_line(IDLE, later(kv_use=0.5)) is None  # cached blocks may stay in use, that is no event


@pytest.mark.parametrize("name", ["num_running", "num_waiting", "prompt_tokens", "generation_tokens"])
def test_any_event_is_worth_a_line(name: str) -> None:
    assert stats_line(IDLE, later(**{name: getattr(IDLE, name) + 1})) is not None


def test_counters_of_a_new_engine_process_start_at_zero() -> None:
    line = stats_line(IDLE, later(prefix_query_tokens=100, prefix_hit_tokens=40))
    assert line is not None and line.endswith("prefix hits 40.0%")


def test_cached_prompt_tokens_are_not_work() -> None:
    figures = EngineFigures(100)
    figures.prompt_tokens, figures.cached_tokens = 50, 20
    assert moment(figures, 1.0).prompt_tokens == 30


def test_the_task_logs_when_something_happened_and_ends_when_cancelled() -> None:
    figures = EngineFigures(100)
    lines: list[str] = []

    async def scenario() -> None:
        task = asyncio.create_task(log_stats(figures, interval_s=0.02, log=lines.append))
        await asyncio.sleep(0.05)
        assert lines == []
        figures.generation_tokens = 10
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert len(lines) == 1 and "generation" in lines[0]


def test_gauges_come_from_the_scheduler() -> None:
    figures = EngineFigures(100)
    figures.stats = SchedulerStats(
        num_running=4,
        num_waiting=6,
        num_preemptions=0,
        used_blocks=3,
        total_blocks=4,
        quarantined_blocks=0,
        prefix_query_tokens=9,
        prefix_hit_tokens=8,
    )
    now = moment(figures, 5.0)
    assert (now.num_running, now.num_waiting, now.kv_use) == (4, 6, 0.75)
    assert (now.prefix_query_tokens, now.prefix_hit_tokens) == (9, 8)
