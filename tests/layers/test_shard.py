"""Shards, and their collectives over a real gloo group of two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton.core.errors import ConfigError
from baton.layers.shard import WHOLE, Shard

pytestmark = pytest.mark.torch

RANK_PROGRAM = """
import sys
import torch
import torch.distributed as dist
from baton.layers.shard import Shard, TorchCollective

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
shard = Shard(rank, 2, TorchCollective(dist.group.WORLD))
x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (10**rank)
assert shard.all_gather(x).tolist() == [[1, 2, 10, 20], [3, 4, 30, 40]]
assert shard.all_gather(x.T).tolist() == [[1, 3, 10, 30], [2, 4, 20, 40]]
assert shard.all_reduce(x).tolist() == [[11, 22], [33, 44]]
del shard
dist.destroy_process_group()
"""


def test_parts_follow_each_other() -> None:
    full = torch.arange(12).view(2, 6)
    assert Shard(1, 3).part(full, 1).tolist() == [[2, 3], [8, 9]]
    assert Shard(1, 2).part(full, 0).tolist() == [[6, 7, 8, 9, 10, 11]]


def test_split_refuses_a_remainder() -> None:
    assert Shard(0, 3).split(12, "rows") == 4
    with pytest.raises(ConfigError, match="rows=13 cannot be split over tensor_parallel_size=3"):
        Shard(0, 3).split(13, "rows")


def test_one_rank_exchanges_nothing() -> None:
    x = torch.ones(2, 2)
    assert WHOLE.all_reduce(x) is x
    assert WHOLE.all_gather(x) is x


def test_gloo(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", RANK_PROGRAM]
    ranks = [
        subprocess.Popen([*arguments, str(rank), str(tmp_path / "meet")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=60)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], errors
