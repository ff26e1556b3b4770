"""Pairs that cannot work are refused at the first request, whatever the policy: field and both values are in both logs
and in the client's error, and both engines go on serving.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from tests.cluster.serving import until
from tests.conftest import END, START, VOCAB
from tests.models.harness import TINY, save_oracle
from tests.transfer.servers import EngineServer, role, servers

pytestmark = pytest.mark.torch

SECRET = ("--peer-secret", "right")
GIVER = (*role("prefill", "--transfer", "push", "--block-size", "16"), *SECRET)
REFUSED_WITHIN_S = 2.0
ASKED = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Case:
    """A decode server that differs from GIVER. told: what both logs and the client's error must say.

    theirs: the same as the giver has to log it, where it knows less.
    """

    flags: tuple[str, ...]
    told: str
    model: str = "same"
    theirs: str | None = None


def taker(*flags: str, secret: tuple[str, ...] = SECRET) -> tuple[str, ...]:
    return (*role("decode"), *secret, *flags)


CASES = {
    "model": Case(taker(), "intermediate_size: giver has 96, taker has 112", model="wider"),
    "dtype": Case(
        taker("--dtype", "bfloat16", "--handoff-policy", "fail"), "dtype: giver has float32, taker has bfloat16"
    ),
    "geometry": Case(taker("--block-size", "24"), "block_tokens: giver has 16, taker has 24"),
    "mode": Case(taker("--transfer", "pull"), "transfer mode: giver has push, taker has pull"),
    "wrong secret": Case(taker(secret=("--peer-secret", "wrong")), "peer secret: giver has set, taker has differs"),
    "no secret": Case(taker(secret=()), "peer secret: giver has set, taker has not set"),
}


@dataclass
class Fleet:
    giver: EngineServer
    takers: dict[str, EngineServer]


@pytest.fixture(scope="module")
def fleet(text_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    wider = tmp_path_factory.mktemp("wider")
    sizes = {**TINY, "vocab_size": VOCAB, "intermediate_size": 112}
    save_oracle(wider, LlamaConfig(**sizes, eos_token_id=END, bos_token_id=START))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (wider / name).write_bytes((text_model / name).read_bytes())
    models = {"same": text_model, "wider": wider}
    commands = [(models[case.model], case.flags) for case in CASES.values()]
    with servers((text_model, GIVER), *commands) as (giver, *takers):
        yield Fleet(giver, dict(zip(CASES, takers, strict=True)))


def source(giver: EngineServer, transfer_id: str) -> dict[str, Any]:
    peer = giver.peer
    return {
        "do_remote_prefill": True,
        "transfer_id": transfer_id,
        "remote_engine_id": peer["engine_id"],
        "remote_host": peer["host"],
        "remote_port": peer["port"],
    }


@pytest.mark.parametrize("name", CASES)
def test_a_pair_that_cannot_work(fleet: Fleet, name: str) -> None:
    case, giver, server = CASES[name], fleet.giver, fleet.takers[name]
    for number, stream in enumerate((False, True)):
        params = source(giver, f"{name.replace(' ', '-')}-{number}")
        started_s = time.monotonic()
        answer = server.post({**ASKED, "stream": stream, "kv_transfer_params": params})
        assert time.monotonic() - started_s < REFUSED_WITHIN_S
        assert answer.status_code == 503 and answer.headers["retry-after"], answer.text
        message = answer.json()["error"]["message"]
        assert message == f"the giver at {params['remote_host']}:{params['remote_port']} refused: {case.told}"
    until(lambda: case.told in giver.stderr() and case.told in server.stderr())
    assert server.stderr().count(case.told) == 1
    assert giver.stderr().count(case.told) == 1
    until(lambda: server.peer["failures"] == {"refused": 2})
    for each in (giver, server):
        assert each.post(ASKED).status_code == 200
        each.idle()


def test_all_at_once(fleet: Fleet) -> None:
    """Each of many requests gets its own server's answer, and the giver serves others meanwhile."""
    asks = [(name, number) for number in range(8) for name in CASES]

    def ask(name: str, number: int) -> str:
        params = source(fleet.giver, f"{name.replace(' ', '-')}-many-{number}")
        return fleet.takers[name].post({**ASKED, "kv_transfer_params": params}).text

    with ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(ask, *each) for each in asks]
        assert all(fleet.giver.post(ASKED).status_code == 200 for _ in range(20))
        for (name, _), answer in zip(asks, answers, strict=True):
            assert CASES[name].told in json.loads(answer.result(30))["error"]["message"]
    for each in (fleet.giver, *fleet.takers.values()):
        each.idle()
