"""Plots and pages: their numbers, and that they need nothing from elsewhere. (How they look, a person has to see.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baton.bench.collection import Run, find
from baton.bench.kinds import Metric
from baton.bench.pareto import PerDevice, PerUser, Point, frontier, point
from baton.bench.plot import panels
from baton.bench.report import page, table
from baton.cli.bench_reports import pareto, plot
from tests.bench.results import result, write_grid

PNG = b"\x89PNG\r\n"


def test_a_panel_for_each_input_length(tmp_path: Path) -> None:
    write_grid(tmp_path, factor={"push": 0.5, "pull": 1.0}, qps=[1, 2], inputs=[128, 512])
    shown = panels(find(str(tmp_path)), Metric.TTFT, 5)
    assert [panel.input_tokens for panel in shown] == [128, 512]
    push = shown[0].lines["push"]
    assert [point.qps for point in push] == [1, 2]
    assert push[0].median.low < push[0].median.value < push[0].median.high
    assert push[0].median.value == pytest.approx(64, rel=0.05)
    assert (push[0].num_runs, push[0].num_requests, push[0].num_failed) == (3, 120, 0)
    assert shown[1].ratios[2].value == pytest.approx(0.5)
    assert panels(find(str(tmp_path)), Metric.TTFT, 6) == []


def test_plot_writes_pictures_and_a_page(tmp_path: Path) -> None:
    write_grid(tmp_path, factor={"push": 0.5, "pull": 1.0}, qps=[1, 2], inputs=[128, 512, 1024])
    plot(results=tmp_path, metric=Metric.TPOT, output_dir=tmp_path / "out")
    assert (tmp_path / "out" / "tpot_out5.png").read_bytes().startswith(PNG)
    assert "</svg>" in (tmp_path / "out" / "tpot_out5.svg").read_text()
    html = (tmp_path / "out" / "tpot_out5.html").read_text()
    assert "<svg" in html
    assert "push, 128 in, 1/s" in html
    assert no_links(html)


def test_pareto_writes_pictures_and_a_page(tmp_path: Path) -> None:
    write_grid(tmp_path, factor={"push": 0.5, "pull": 1.0}, qps=[1, 2], inputs=[128])
    pareto(results=[str(tmp_path)], devices=2, output_dir=tmp_path / "out")
    assert (tmp_path / "out" / "pareto.png").read_bytes().startswith(PNG)
    assert no_links((tmp_path / "out" / "pareto.html").read_text())


def no_links(html: str) -> bool:
    """Nothing is fetched: addresses stand in names of XML spaces only, references lead into the page."""
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    return "<script" not in html and "@import" not in html and all(link.startswith(("#", "data:")) for link in links)


def test_pages_escape_what_servers_say() -> None:
    html = page("<b>", [table(("a",), [("<script>x</script>",)])])
    assert "<script>" not in html
    assert "&lt;b&gt;" in html


def test_both_published_definitions() -> None:
    """1000 / median TPOT, and output tokens/s over users; per device by what the result says, or what is given."""
    values = result([100] * 10, tpot_ms=20, topology="1P1D", mode="push", num_devices=2, max_concurrency=4)
    run = Run(name=None, path=Path("x"), result=values)  # type: ignore[arg-type]
    found = point(run, None)
    assert found.per_user[PerUser.TPOT] == pytest.approx(50)
    assert found.per_user[PerUser.SHARE] == pytest.approx(10 * 5 / 2.0 / 4)
    assert found.per_device[PerDevice.OUTPUT] == pytest.approx(25 / 2)
    assert found.per_device[PerDevice.TOTAL] == pytest.approx((1000 + 50) / 2.0 / 2)
    assert point(run, 5).per_device[PerDevice.OUTPUT] == pytest.approx(5)
    assert (found.group, found.label, found.median_ttft_ms) == ("1P1D push", "c4", pytest.approx(100))


def test_the_frontier_has_what_no_other_beats() -> None:
    def at(user: float, device: float) -> Point:
        return Point(
            group="",
            label="",
            median_ttft_ms=1,
            p99_ttft_ms=1,
            per_user=dict.fromkeys(PerUser, user),
            per_device=dict.fromkeys(PerDevice, device),
            num_devices=1,
            failed=0,
        )

    best = [at(10, 100), at(20, 90), at(30, 10)]
    beaten = [at(10, 90), at(15, 80), at(30, 5), at(20, 90)]
    assert frontier([*beaten, *best], PerUser.TPOT, PerDevice.TOTAL) == best
