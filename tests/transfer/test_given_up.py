"""DELETE /handoffs/{transfer_id}: what nobody comes for is free at once; what a taker may be reading is not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.serving import until
from tests.transfer.servers import EngineServer, Pair, proxied, role, servers
from tests.transfer.test_giver import PULL, Side

BODY: dict[str, Any] = {"prompt": list(range(5, 45)), "max_tokens": 4, "seed": 1}
HELD = ("used_blocks", "pinned_blocks", "num_running", "num_reserved", "num_leased", "num_in_flight")


class TestGiver:
    def test_a_lease_nobody_has_claimed_ends(self) -> None:
        side = Side()
        side.grant()
        side.prefilled()
        side.withdraw()
        assert (side.settled(), side.giver.num_open) == ([1], 0)

    def test_what_is_posted_drains_first(self) -> None:
        side = Side()
        side.reserving()
        side.grant()
        side.prefilled()
        side.withdraw()
        assert side.settled() == []
        side.land()
        assert (side.settled(), side.giver.num_open) == ([1], 0)

    def test_an_offer_stands_until_its_lease_ends(self) -> None:
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.reserving()
        side.withdraw()
        assert (side.settled(), side.giver.num_leased) == ([], 1)
        side.tick(1000.0)
        assert (side.settled(), side.giver.num_open) == ([1], 0)

    def test_one_that_nobody_claimed_ends_in_pull_too(self) -> None:
        side = Side(PULL)
        side.grant()
        side.prefilled()
        side.withdraw()
        assert side.settled() == [1]


@pytest.fixture(scope="module")
def pairs(text_model: Path) -> Iterator[dict[str, Pair]]:
    """A pair for each mode, with the lease of 30 s."""
    flags = ("--no-enable-prefix-caching", "--handoff-policy", "fail")
    commands = [(text_model, role(name, *flags)) for _ in ("push", "pull") for name in ("prefill", "decode")]
    with servers(*commands) as four, ExitStack() as stack:
        ends = {"push": four[:2], "pull": four[2:]}
        yield {mode: stack.enter_context(proxied(mode, *both)) for mode, both in ends.items()}


def held(server: EngineServer) -> dict[str, int]:
    pools = server.stats()["pools"]
    return {name: pools[name] for name in HELD if pools[name]}


def give_up(server: EngineServer, transfer_id: str) -> None:
    answer = server.http.delete(f"/handoffs/{transfer_id}")
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_prompt_that_nobody_comes_for_is_free_within_a_second(pairs: dict[str, Pair], mode: str) -> None:
    pair = pairs[mode]
    give_up(pair.prefill, "unknown")
    answer = pair.give("left", **BODY).result()
    ticket = answer.json()["kv_transfer_params"]
    assert answer.status_code == 200 and ticket["transfer_id"] == "left"
    until(lambda: held(pair.prefill) == {"used_blocks": 3, "pinned_blocks": 3, "num_leased": 1}, 5)
    time.sleep(1.0)
    assert held(pair.prefill)["num_leased"] == 1  # kept, as long as nobody says otherwise
    give_up(pair.prefill, "left")
    until(lambda: not held(pair.prefill), 1.0)
    late = pair.take(ticket, **BODY).result()
    assert late.status_code == 503 and "error" in late.json()
    give_up(pair.prefill, "left")
    pair.idle()
    # The pair is as good as before.
    assert pair.ask(**BODY).status_code == 200
    pair.idle()


@pytest.mark.torch
def test_peers_know_each_other_by_fingerprint_and_incarnation(pairs: dict[str, Pair]) -> None:
    served = [server.stats()["served"] for pair in pairs.values() for server in (pair.prefill, pair.decode)]
    assert len({each["fingerprint"] for each in served}) == 1 and len({each["incarnation"] for each in served}) == 4
    push = pairs["push"].prefill
    before = push.stats()
    assert before["served"]["incarnation"] == before["handoff"]["engine_id"]
    push.kill()
    push.back(before["handoff"]["engine_id"])
    after = push.stats()
    assert after["served"]["incarnation"] == after["handoff"]["engine_id"] != before["served"]["incarnation"]
    assert after["served"]["fingerprint"] == before["served"]["fingerprint"]
    assert after["pools"]["total_blocks"] == before["pools"]["total_blocks"]


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_giver_that_is_told_to_end_waits_for_those_who_need_its_blocks(pairs: dict[str, Pair], mode: str) -> None:
    """This ends the giver: nothing may come behind it in this file."""
    pair = pairs[mode]
    tickets = [pair.give(f"{name}-{mode}", **BODY).result().json() for name in ("fetched", "left")]
    fetched, left = (ticket["kv_transfer_params"] for ticket in tickets)
    pair.prefill.process.send_signal(signal.SIGTERM)
    until(lambda: pair.prefill.status("/ready") == 503)
    time.sleep(1.0)
    assert pair.prefill.status("/live") == 200 and pair.prefill.stats()["state"] == "draining"
    answer = pair.take(fetched, **BODY).result()
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    until(lambda: held(pair.prefill).get("num_leased") == 1)
    give_up(pair.prefill, left["transfer_id"])
    assert pair.prefill.exit(5) == 0
