"""`vllm bench serve` and `baton bench run`, one after the other on the same stub, report the same within 3 %.

Needs a virtual environment with vLLM (any build; 0.32 was used): BATON_VLLM_VENV=FOLDER.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from baton.bench.arrivals import Steady
from baton.bench.asks import Lengths, RandomTokens
from baton.bench.run import Target, run
from baton.bench.workload import WorkloadOptions
from tests.bench.conftest import StartStub, until_it_holds

VENV = os.environ.get("BATON_VLLM_VENV", "")
OFFLINE = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
NUM_REQUESTS, RATE = 60, 20
COMPARED = [
    *(f"{kind}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for kind in ("mean", "median", "p90")),
    *("duration", "request_throughput", "output_throughput", "completed", "total_output_tokens"),
]


@pytest.mark.slow
@pytest.mark.skipif(not VENV, reason="BATON_VLLM_VENV is not set")
def test_vllm_reports_the_same(start_stub: StartStub, tmp_path: Path) -> None:
    def check() -> None:
        url = start_stub("--ttft-ms", "200", "--step-ms", "80")
        theirs = vllm_result(url, tmp_path)
        data = RandomTokens(inputs=Lengths(tokens=32), outputs=Lengths(tokens=10))
        options = WorkloadOptions(data=data, arrivals=Steady(rate=RATE), count=NUM_REQUESTS, num_warm_up=0)
        ours = uvloop.run(run(Target(url=url), options, slo_ms={}, facts={}))
        assert set(theirs) <= set(ours)
        for name in COMPARED:
            assert ours[name] == pytest.approx(theirs[name], rel=0.03), name

    until_it_holds(check)


def vllm_result(url: str, folder: Path) -> dict[str, Any]:
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(200)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}')
    server = ["--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions", "--model", "stub-model"]
    load = ["--num-prompts", str(NUM_REQUESTS), "--request-rate", str(RATE), "--ready-check-timeout-sec", "0"]
    data = ["--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "10"]
    output = ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "vllm.json"]
    output += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    command = [f"{VENV}/bin/vllm", "bench", "serve", *server, *load, *data, *output, "--tokenizer", str(folder)]
    done = subprocess.run(
        command, env={**os.environ, **OFFLINE}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((folder / "vllm.json").read_text())
    return found
