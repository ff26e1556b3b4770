"""What /fleet, /stats and /trace say, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from baton.bench.scrape import EngineView, handoff_figures, mode_of, topology
from baton.bench.waterfall import bars, lines
from baton.obs import chrome_trace
from baton.obs.chrome_trace import Span


def engine(name: str, role: str, **handoff: Any) -> EngineView:
    return EngineView(name=name, role=role, num_devices=1, handoff={"engine_id": name, **handoff})


def test_topologies() -> None:
    fleet = [engine("d0", "decode"), engine("p0", "prefill"), engine("d1", "decode")]
    assert topology(fleet) == "1P2D"
    assert topology([]) == ""


@pytest.mark.parametrize(
    ("num_pushed", "num_pulled", "mode"), [(4, 0, "push"), (0, 3, "pull"), (4, 3, "mixed"), (0, 0, "none")]
)
def test_the_mode_is_that_of_the_transfers_of_this_run(num_pushed: int, num_pulled: int, mode: str) -> None:
    """The giver counts what it pushed, the taker what it pulled. Before the run there were both."""
    before = [engine("p", "prefill", num_transfers=10, num_pushed=10), engine("d", "decode", num_transfers=20)]
    after = [
        engine("p", "prefill", num_transfers=10 + num_pushed, num_pushed=10 + num_pushed),
        engine("d", "decode", num_transfers=20 + num_pulled, num_pushed=0),
    ]
    found = handoff_figures(before, after)
    assert found is not None
    assert (found["transfers"], found["pushed"]) == (num_pushed + num_pulled, num_pushed)
    assert [row["pushed"] for row in found["engines"]] == [num_pushed, 0]
    assert mode_of(found) == mode


def test_without_a_peer_there_is_no_mode() -> None:
    assert mode_of(handoff_figures([], [EngineView(name="s", role="mixed", num_devices=1)])) == "none"


def test_handoffs_of_one_run_are_differences() -> None:
    """early_share is of all bytes since the engine's start: 0.5 of 1000 before, 0.6 of 2000 after: 700 of 1000."""
    before = [
        engine("p", "prefill", num_transfers=10, num_bytes=1000, early_share=0.5, failures={"timeout": 1}),
        engine("d", "decode", num_fallbacks=2),
    ]
    after = [
        engine(
            "p",
            "prefill",
            num_transfers=14,
            num_bytes=2000,
            early_share=0.6,
            failures={"timeout": 3},
            exposed_ms={"p50": 2.0},
        ),
        engine("d", "decode", num_fallbacks=2),
    ]
    found = handoff_figures(before, after)
    assert found is not None
    assert (found["transfers"], found["bytes"], found["failures"], found["fallbacks"]) == (4, 1000, 2, 0)
    assert found["early_share"] == pytest.approx(0.7)
    assert found["exposed_ms"] == {"p50": 2.0}


def test_an_engine_that_was_started_again_counts_from_zero() -> None:
    before = [engine("p", "prefill", num_transfers=10, num_pushed=10, num_bytes=1000)]
    new = EngineView(
        name="p",
        role="prefill",
        num_devices=1,
        handoff={"engine_id": "other", "num_transfers": 3, "num_pushed": 2, "num_bytes": 30},
    )
    found = handoff_figures(before, [new])
    assert found is not None
    assert (found["transfers"], found["pushed"], found["bytes"]) == (3, 2, 30)
    assert handoff_figures([], []) is None


def test_a_waterfall_of_two_engines() -> None:
    def document(process: str, *spans: tuple[str, float, float]) -> chrome_trace.Document:
        rows = [Span(name=name, start_s=start, end_s=end, row="request") for name, start, end in spans]
        return chrome_trace.document(rows, process=process, process_name=f"{process} engine", label="x", facts={})

    giver = document("p", ("queue", 100.0, 100.01), ("prefill", 100.01, 100.1))
    taker = document("d", ("transfer", 100.05, 100.11), ("decode", 100.11, 100.2))
    shown = bars(chrome_trace.merge([taker, giver]))
    assert [(bar.where, bar.name) for bar in shown] == [
        ("p engine", "queue"),
        ("p engine", "prefill"),
        ("d engine", "transfer"),
        ("d engine", "decode"),
    ]
    assert (shown[1].start_ms, shown[1].end_ms) == pytest.approx((10, 100))
    drawn = list(lines(shown, 20))
    assert [where for where, *_ in drawn] == ["p engine", "", "d engine", ""]
    assert [bar for _, _, bar, _ in drawn] == ["█", " █████████", "     ██████", "           █████████"]
    assert drawn[1][3] == "10.0 + 90.0 ms"
    assert bars({"traceEvents": []}) == []
