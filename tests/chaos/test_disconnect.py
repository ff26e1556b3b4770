"""A client that leaves, at each stage of its request, streamed or not: within 2 s nothing of it is held on either side.

One prefill and one decode engine with two slots each, and prefill in chunks of 8 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rest import held, wait_for_nothing
from tests.chaos.routed import Begun, Routed, routed
from tests.cluster.serving import until
from tests.transfer.servers import EngineServer

pytestmark = pytest.mark.torch

FREE_WITHIN_S = 2.0
SLOTS = 2
FLAGS = (
    *("--max-model-len", "4096", "--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", "8"),
    *("--kv-cache-tokens", "32768", "--no-enable-prefix-caching"),
)
LONG, SHORT = 3000, 40
MANY = 30  # more than two workers of two slots get from the router
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module", params=["push", "pull"])
def fleet(request: pytest.FixtureRequest, model: Path) -> Iterator[Routed]:
    with routed(model, request.param, 1, 1, *FLAGS) as found:
        yield found


_NUMBERS = iter(range(10**6))


def body(num_prompt: int, num_new: int, *, stream: bool) -> dict[str, Any]:
    """A prompt that nobody has seen."""
    prompt = [next(_NUMBERS) % 256, *[7] * (num_prompt - 1)]
    return {"prompt": prompt, "max_tokens": num_new, "temperature": 0, "ignore_eos": True, "stream": stream}


def occupy(stack: ExitStack, fleet: Routed, server: EngineServer, num_prompt: int, num_new: int) -> list[Begun]:
    """Take all slots of one engine, not by way of the router."""
    asked = [body(num_prompt, num_new, stream=True) for _ in range(SLOTS)]
    found = [stack.enter_context(Begun(server.url, each)) for each in asked]
    until(lambda: _sequences(fleet, server) == SLOTS)
    return found


def _sequences(fleet: Routed, server: EngineServer) -> int:
    pools = fleet.pools(server)
    return pools["num_running"] + pools["num_waiting"]


def leave(fleet: Routed, client: Begun, *, stream: bool) -> None:
    """Leave, by RST where it streams and by FIN where not; nothing is held 2 s later."""
    client.leave(reset=stream)
    left, _ = wait_for_nothing(fleet.held, FREE_WITHIN_S)
    assert not left, (left, fleet.router.stderr())


@BOTH
def test_while_it_is_queued(fleet: Routed, stream: bool) -> None:
    """The prefill engine has others to do first."""
    (prefill,), (decode,) = fleet.prefill, fleet.decode
    with ExitStack() as stack:
        others = occupy(stack, fleet, prefill, SHORT, 4000)
        client = stack.enter_context(Begun(fleet.url, body(SHORT, 100, stream=stream)))
        time.sleep(0.3)
        assert client.silent()
        client.leave(reset=stream)

        def left_over() -> list[str]:
            more = _sequences(fleet, prefill) - SLOTS
            return held("decode", decode.stats()) + [f"{more} sequences more than before"] * bool(more)

        left, _ = wait_for_nothing(left_over, FREE_WITHIN_S)
        assert not left, left
        assert _sequences(fleet, prefill) == SLOTS, "the slots were free before the client left"
        for other in others[1:]:
            other.leave(reset=False)
        leave(fleet, others[0], stream=stream)


@BOTH
def test_while_it_waits_in_the_router(fleet: Routed, stream: bool) -> None:
    """All workers have as much as the router gives them."""
    with ExitStack() as stack:
        many = [stack.enter_context(Begun(fleet.url, body(LONG, 100, stream=stream))) for _ in range(MANY)]
        until(lambda: fleet.metric("baton_router_queued_requests") > 0)
        client = stack.enter_context(Begun(fleet.url, body(SHORT, 100, stream=stream)))
        before = fleet.metric("baton_router_live_requests")
        assert before == MANY + 1 and client.silent()
        client.leave(reset=stream)
        until(lambda: fleet.metric("baton_router_live_requests") < before, FREE_WITHIN_S)
        for each in many[1:]:
            each.leave(reset=stream)
        leave(fleet, many[0], stream=stream)
        assert not fleet.metric("baton_router_live_requests")


@BOTH
def test_while_its_prompt_is_prefilled(fleet: Routed, stream: bool) -> None:
    (prefill,) = fleet.prefill
    with Begun(fleet.url, body(LONG, 100, stream=stream)) as client:
        until(lambda: fleet.pools(prefill)["num_running"] == 1)
        assert client.silent()
        leave(fleet, client, stream=stream)


@BOTH
def test_while_it_is_handed_over(fleet: Routed, stream: bool) -> None:
    """Prefill is over and its blocks are kept, the decode engine has no slot for it."""
    (prefill,), (decode,) = fleet.prefill, fleet.decode
    with ExitStack() as stack:
        others = occupy(stack, fleet, decode, SHORT, 3000)
        client = stack.enter_context(Begun(fleet.url, body(SHORT, 100, stream=stream)))
        until(lambda: fleet.pools(prefill)["num_leased"] == 1)
        client.leave(reset=stream)

        def kept() -> list[str]:
            return [each for each in fleet.held() if prefill.url in each or "waiting" in each or "reserved" in each]

        left, _ = wait_for_nothing(kept, FREE_WITHIN_S)
        assert not left, left
        assert fleet.pools(decode)["num_running"] == SLOTS, "the slots were free before the client left"
        for other in others[1:]:
            other.leave(reset=False)
        leave(fleet, others[0], stream=stream)


@BOTH
def test_while_it_is_decoded(fleet: Routed, stream: bool) -> None:
    (decode,) = fleet.decode
    with Begun(fleet.url, body(SHORT, 3000, stream=stream)) as client:
        until(lambda: fleet.pools(decode)["num_running"] == 1)
        if stream:
            assert b"200" in client.read()
        leave(fleet, client, stream=stream)
