"""Confidence intervals, and comparisons of result files matched by case."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from baton.bench.bootstrap import estimate, median, ratio
from baton.bench.case import Case, RunName, parse_name
from baton.bench.collection import by_mode, find
from baton.bench.compare import compare
from baton.core.errors import ConfigError
from tests.bench.results import result, write_grid


def test_names() -> None:
    """Those of vLLM's push/pull script, there and back."""
    name = RunName(mode="push", case=Case(input_tokens=2048, output_tokens=128, qps=0.5), iteration=2)
    assert str(name) == "push_qps0.5_in2048_out128_iter2"
    assert parse_name(f"{name}.json") == parse_name(f"{name}.log") == name
    assert parse_name("sweep.json") is None
    bursts = parse_name("vllm_pull_qpsinf_in1_out1_iter0.json")
    assert bursts is not None
    assert (bursts.mode, bursts.case.qps) == ("vllm_pull", float("inf"))


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """95 % intervals for the median of a normal distribution: at least 85 of 100 (three standard errors below 95)."""
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(100):
        found = estimate([rng.normal(100, 10, size=60)], median, seed=trial)
        hits += found.low <= 100 <= found.high
    assert hits >= 85


def test_differences_between_repetitions_widen_it() -> None:
    rng = np.random.default_rng(0)
    alike = [rng.normal(100, 1, size=50) for _ in range(4)]
    apart = [values + 20 * number for number, values in enumerate(alike)]
    narrow, wide = estimate(alike, median), estimate(apart, median)
    assert narrow.high - narrow.low < 1
    assert wide.high - wide.low > 15


def test_requests_that_belong_together_are_drawn_together() -> None:
    """One side is 0.8 of the other, request by request: the ratio is 0.8 however much requests differ."""
    slow = [np.random.default_rng(seed).uniform(10, 1000, size=50) for seed in range(3)]
    found = ratio([0.8 * values for values in slow], slow, median)
    assert found.low == pytest.approx(0.8)
    assert found.high == pytest.approx(0.8)
    apart = ratio([0.8 * values[:-1] for values in slow], slow, median)
    assert apart.high - apart.low > 0.1


def test_cases_are_matched(tmp_path: Path) -> None:
    write_grid(tmp_path, factor={"push": 0.8, "pull": 1.0}, qps=[1, 2], inputs=[128])
    write_grid(tmp_path / "more", factor={"pull": 1.0}, qps=[2, 4], inputs=[128, 512])
    rows = compare(find(str(tmp_path / "push")), find(str(tmp_path / "pull")))
    assert {row.case.qps for row in rows} == {1, 2}
    (row,) = (row for row in rows if row.figure == "median TTFT ms" and row.case.qps == 1)
    assert row.ratio.value == pytest.approx(0.8)
    assert (row.verdict, row.repetitions) == ("better", (3, 3))
    (rate,) = (row for row in rows if row.figure == "requests/s" and row.case.qps == 1)
    assert (rate.ratio.value, rate.verdict) == (1.0, "same")
    assert {row.case for row in compare(find(str(tmp_path / "pull")), find(str(tmp_path / "more")))} == {
        Case(input_tokens=128, output_tokens=5, qps=2)
    }


def test_several_modes_are_compared_mode_by_mode(tmp_path: Path) -> None:
    write_grid(tmp_path / "a", factor={"push": 1, "pull": 1}, qps=[1], inputs=[128])
    write_grid(tmp_path / "b", factor={"push": 2, "pull": 1}, qps=[1], inputs=[128])
    rows = compare(find(str(tmp_path / "a")), find(str(tmp_path / "b")))
    verdicts = {row.mode: row.verdict for row in rows if row.figure == "median TTFT ms"}
    assert verdicts == {"push": "better", "pull": "same"}


def test_one_run_a_side_says_nothing_of_rates(tmp_path: Path) -> None:
    for mode, rate in (("push", 1.0), ("pull", 2.0)):
        (tmp_path / f"{mode}_qps1_in1_out5_iter0.json").write_text(
            json.dumps(result([100, 110, 120], request_throughput=rate))
        )
    rows = compare(find(str(tmp_path / "push")), find(str(tmp_path / "pull")))
    assert {row.figure: row.verdict for row in rows}["requests/s"] == "?"


def test_nothing_to_compare(tmp_path: Path) -> None:
    write_grid(tmp_path / "a", factor={"push": 1}, qps=[1], inputs=[128])
    write_grid(tmp_path / "b", factor={"push": 1}, qps=[2], inputs=[128])
    with pytest.raises(ConfigError, match="both sides"):
        compare(find(str(tmp_path / "a")), find(str(tmp_path / "b")))
    with pytest.raises(ConfigError, match="no result files"):
        find(str(tmp_path / "c"))


def test_failed_requests_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "other_name.json"
    path.write_text(json.dumps(result([9000, 100, 110], failed=1, mode="pull", iter=4)))
    (run,) = find(str(path))
    assert list(run.samples_ms("ttft")) == pytest.approx([100, 110])
    assert list(run.samples_ms("tpot")) == pytest.approx([10, 10])
    assert run.name == RunName(mode="pull", case=Case(input_tokens=100, output_tokens=5, qps=1.0), iteration=4)
    assert list(by_mode([run])) == ["pull"]


def test_a_result_without_samples_is_refused(tmp_path: Path) -> None:
    """Such as of `vllm bench serve` without --save-detailed."""
    bare = result([100])
    del bare["ttfts"]
    path = tmp_path / "pull_qps1_in1_out1_iter0.json"
    path.write_text(json.dumps(bare))
    with pytest.raises(ConfigError, match="save-detailed"):
        find(str(path))[0].samples_ms("ttft")
