"""Sweeps: order, seeds, files, and going on after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from baton.bench.asks import Lengths, RandomTokens
from baton.bench.collection import by_mode, find
from baton.bench.local_fleet import running
from baton.bench.run import Target
from baton.bench.sweep import SweepOptions, at_urls, sweep
from baton.bench.sweep_plan import Grid, seed_of
from baton.core.errors import ConfigError
from tests.bench.conftest import StartStub
from tests.cluster.serving import alive, children, until

GRID = Grid(modes=("push", "pull"), qps=(50.0, 100.0), input_tokens=(8,), output_tokens=(2,), iterations=2)


def options(folder: Path, grid: Grid = GRID, count: int = 4) -> SweepOptions:
    lengths = Lengths(tokens=1)
    prompts = RandomTokens(inputs=lengths, outputs=lengths)
    return SweepOptions(grid=grid, folder=folder, prompts=prompts, target=Target(url=""), count=count, num_warm_up=1)


def test_modes_alternate() -> None:
    """A B, B A, A B: every case of a mode in a row, so that a server is started once for them."""
    grid = replace(GRID, iterations=3)
    blocks = list(grid.blocks())
    assert [block[0].mode for block in blocks] == ["push", "pull", "pull", "push", "push", "pull"]
    assert [len(block) for block in blocks] == [2] * 6
    names = Counter(str(name) for block in blocks for name in block)
    assert len(names) == 12
    assert max(names.values()) == 1


def test_seeds_are_fresh_for_every_run_and_the_same_in_both_modes() -> None:
    names = [name for block in GRID.blocks() for name in block]
    push = {seed_of(name, 0) for name in names if name.mode == "push"}
    pull = {seed_of(name, 0) for name in names if name.mode == "pull"}
    assert push == pull
    assert len(push) == 4
    assert seed_of(names[0], 0) != seed_of(names[0], 1)


def test_a_sweep_writes_a_file_for_each_run_and_goes_on(start_stub: StartStub, tmp_path: Path) -> None:
    urls = {"push": start_stub(), "pull": start_stub()}
    started: list[tuple[str, int]] = []

    def serve(mode: str, iteration: int) -> AbstractContextManager[str]:
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append((mode, iteration))
        return nullcontext(urls[mode])

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        sweep(options(tmp_path), serve, said.append)
    assert started == [("push", 0), ("pull", 0)]
    (tmp_path / "push_qps50_in8_out2_iter0.json").unlink()
    before = (tmp_path / "push_qps100_in8_out2_iter0.json").read_bytes()
    assert sweep(options(tmp_path), at_urls(urls), said.append) == 5  # 8 in all, 3 were there
    assert (tmp_path / "push_qps100_in8_out2_iter0.json").read_bytes() == before
    assert len(list(tmp_path.glob("*_iter?.json"))) == len(list(tmp_path.glob("*_iter?.log"))) == 8
    assert sweep(options(tmp_path), at_urls(urls), said.append) == 0
    runs = by_mode(find(str(tmp_path)))
    (first, second) = (runs[mode][GRID.cases[0]][1].result for mode in ("push", "pull"))
    assert (first["mode"], first["iter"], first["request_rate"], first["completed"]) == ("push", 1, 50.0, 4)
    assert first["seed"] == second["seed"]
    assert "8/8" in said[-2]
    assert "4 completed" in (tmp_path / "pull_qps50_in8_out2_iter1.log").read_text()


def test_a_folder_is_one_sweeps(start_stub: StartStub, tmp_path: Path) -> None:
    grid = replace(GRID, modes=("push",), qps=(100.0,), iterations=1)
    urls = {"push": start_stub()}
    sweep(options(tmp_path, grid), at_urls(urls), print)
    assert sweep(options(tmp_path, replace(grid, iterations=2)), at_urls(urls), print) == 1
    with pytest.raises(ConfigError, match="another requests"):
        sweep(options(tmp_path, grid, count=5), at_urls(urls), print)


def test_a_half_written_result_is_told(start_stub: StartStub, tmp_path: Path) -> None:
    (tmp_path / "push_qps50_in8_out2_iter0.json").write_text("{")
    with pytest.raises(ConfigError, match="no result file"):
        sweep(options(tmp_path), at_urls({"push": start_stub(), "pull": "-"}), print)


def fleet(body: str) -> list[str]:
    return [sys.executable, "-c", f"import time\n{body}"]


def test_a_fleet_is_ended_behind_the_block(tmp_path: Path) -> None:
    body = (
        "import os; print('Baton is ready at http://x:1', flush=True); print(os.getpid(), flush=True); time.sleep(60)"
    )
    log = tmp_path / "up.log"
    with pytest.raises(RuntimeError), running(fleet(body), log) as url:
        assert url == "http://x:1"
        until(lambda: len(log.read_text().splitlines()) == 2)
        pid = int(log.read_text().splitlines()[1])
        assert alive(pid)
        raise RuntimeError
    assert not alive(pid)


def test_a_fleet_ends_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL: nothing runs behind the block, the kernel sends the signal."""
    fleet_code = "import os, time; print('Baton is ready at http://x:1', flush=True); time.sleep(60)"
    log, command = str(tmp_path / "up.log"), [sys.executable, "-c", fleet_code]
    program = (
        "import pathlib, time\nfrom baton.bench.local_fleet import running\n"
        f"with running({command!r}, pathlib.Path({log!r})):\n    print('in it', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "in it\n"
        (below,) = children(killed.pid)
        killed.kill()
    until(lambda: not alive(below))


def test_a_fleet_that_does_not_start(tmp_path: Path) -> None:
    started_s = time.monotonic()
    with (
        pytest.raises(ConfigError, match="did not start: no such model"),
        running(fleet("print('no such model'); exit(2)"), tmp_path / "up.log"),
    ):
        pass
    assert time.monotonic() - started_s < 10


def test_results_are_json(start_stub: StartStub, tmp_path: Path) -> None:
    grid = replace(GRID, modes=("mono",), qps=(float("inf"),), iterations=1)
    sweep(options(tmp_path, grid), at_urls({"mono": start_stub()}), print)
    found = json.loads((tmp_path / "mono_qpsinf_in8_out2_iter0.json").read_text())
    assert found["request_rate"] == "inf"
