"""The short form of the chaos run: every fault once, in push and in pull."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.chaos import Plan, run
from tests.chaos.faults import KINDS
from tests.chaos.report import table
from tests.chaos.verdicts import Verdict

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


@pytest.mark.parametrize("mode", ["auto", "pull"])
def test_every_fault_once(tmp_path: Path, mode: str) -> None:
    plan = Plan(faults=len(KINDS), seed=1, mode=mode, seconds_between=1.0, num_asks=30, num_after=20)
    report = run(plan, tmp_path)
    print(table(report))
    assert not report.problems, table(report)
    assert report.load.verdicts.get(Verdict.RIGHT.value, 0) >= 20
    assert sum(report.faults.values()) >= len(KINDS) * 2 // 3
