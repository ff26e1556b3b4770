"""Connections between two engines are reset while both live: hand-offs fail, if at all, until there is a new one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.models import FLOAT32
from tests.chaos.processes import Process
from tests.cluster.serving import until
from tests.transfer.servers import Pair, server_pair

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="pidfd")]


@pytest.fixture(scope="module", params=["push", "pull"])
def pair(request: pytest.FixtureRequest, model: Path) -> Iterator[Pair]:
    """All bytes go over TCP: with shared memory a READ would not notice what became of the connection."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_TLS", "tcp,self")
        with server_pair(model, request.param, *FLOAT32, "--no-enable-prefix-caching") as found:
            yield found


_NUMBERS = iter(range(256))


def hand_over(pair: Pair) -> None:
    """One request, whose tokens are those of the decode engine alone."""
    asked: dict[str, Any] = {"prompt": [next(_NUMBERS)] * 40, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    seen, alone = pair.ask(**asked), pair.decode.post(asked)
    assert (seen.status_code, alone.status_code) == (200, 200), seen.text
    assert seen.json()["choices"][0]["text"] == alone.json()["choices"][0]["text"]


def reset(pair: Pair, hit: str, chosen: Callable[[set[int]], bool]) -> None:
    """End what was chosen of one engine's connections."""
    with Process(getattr(pair, hit).engine()) as victim:
        assert victim.reset(chosen)


def check_mended(pair: Pair, num_lost: int) -> None:
    """After so many hand-offs that may fail all succeed, and nothing is kept."""
    for _ in range(num_lost):
        hand_over(pair)
    before = pair.decode.peer["num_fallbacks"]
    for _ in range(3):
        hand_over(pair)
    assert pair.decode.peer["num_fallbacks"] == before
    pair.idle()


@pytest.mark.parametrize("hit", ["prefill", "decode"])
def test_the_control_connection(pair: Pair, hit: str) -> None:
    """Two may fail: the one that meets it, and one that was under way."""
    hand_over(pair)
    channel = pair.prefill.peer["port"]
    reset(pair, hit, lambda ports: channel in ports)
    check_mended(pair, num_lost=2)


def data(pair: Pair) -> Callable[[set[int]], bool]:
    """Chooses the connections of the agents."""
    return {pair.prefill.peer["port"], pair.decode.peer["port"]}.isdisjoint


@pytest.mark.parametrize("hit", ["prefill", "decode"])
def test_the_data_connections(pair: Pair, hit: str) -> None:
    """The hand-off that meets it is computed again; the next one has a new connection."""
    hand_over(pair)
    reset(pair, hit, data(pair))
    check_mended(pair, num_lost=1)


@pytest.mark.parametrize("hit", ["prefill", "decode"])
def test_the_data_connections_while_they_are_used(pair: Pair, hit: str) -> None:
    """Whatever was posted ends, and with it every pin."""
    hand_over(pair)
    chosen = data(pair)
    asked = [pair.run(hand_over, pair) for _ in range(16)]
    until(lambda: any(one.done() for one in asked))
    reset(pair, hit, chosen)
    assert not all(one.done() for one in asked), "they were to run while it happened"
    for one in asked:
        one.result(30)
    check_mended(pair, num_lost=1)
