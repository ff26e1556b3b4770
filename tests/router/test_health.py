"""What is learned of workers by looking at them, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton.core.handoff import Role, TransferMode
from baton.router.health import Watch, look_at
from baton.router.http import Http, HttpError
from baton.router.looks import Look, read_models, read_stats
from baton.router.worker import WorkerGauges, WorkerKind, WorkerSpec, WorkerState
from baton.wire.engine import PeerInfo
from tests.router.fake_worker import FakeWorker, baton_stats


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


async def look(worker: FakeWorker, timeout_s: float = 2.0, kind: WorkerKind | None = None, **spec: Any) -> Look:
    async with Http() as http:
        return await look_at(http, WorkerSpec(url=worker.url, **spec), timeout_s=timeout_s, kind=kind)


def test_a_server_that_works_one_way_says_so() -> None:
    body = baton_stats("prefill")
    body["handoff"]["transfer_modes"] = ["pull"]
    found = read_stats(body, now=7.0)
    assert found is not None and found.facts.transfer_modes == {TransferMode.PULL}


def test_all_that_a_baton_server_tells() -> None:
    pools = {"used_blocks": 3, "total_blocks": 100, "num_leased": 2, "num_in_flight": 1, "pinned_blocks": 9}
    pools |= {"num_running": 4, "num_waiting": 5, "num_reserved": 6}
    found = read_stats(baton_stats("prefill", pools=pools, engine_silent_s=1.5), now=7.0)
    assert found is not None
    peer = PeerInfo(role=Role.PREFILL, engine_id="i1", host="127.0.0.1", port=5600)
    facts = found.facts
    assert (facts.kind, facts.incarnation, facts.role) == (WorkerKind.BATON, "i1", Role.PREFILL)
    assert (facts.transfer_modes, facts.peer, facts.models) == (frozenset(TransferMode), peer, ("m",))
    assert (facts.fingerprint, facts.block_tokens, facts.num_blocks) == ("f", 16, 100)
    assert (facts.max_num_seqs, facts.max_model_len) == (4, 512)
    assert found.gauges == WorkerGauges(
        read_s=7.0,
        num_running=4,
        num_waiting=5,
        num_reserved=6,
        used_blocks=3,
        pinned_blocks=9,
        num_leased=2,
        num_in_flight=1,
    )
    assert (found.state, found.engine_silent_s, found.handoff["num_bytes"]) == (WorkerState.READY, 1.5, 12)


def test_an_older_server_that_tells_less() -> None:
    body = {"state": "ready", "served": {"model": "m", "block_tokens": 16}, "handoff": {"role": "decode"}}
    found = read_stats(body, now=0.0)
    assert found is not None and found.facts.models == ("m",) and found.facts.incarnation == ""
    assert (found.facts.role, found.facts.transfer_modes, found.facts.num_blocks) == (Role.MIXED, frozenset(), 0)


@pytest.mark.parametrize("state", ["starting", "ready", "draining", "dead", "some new one"])
def test_states(state: str) -> None:
    expected = {"starting": WorkerState.STARTING, "ready": WorkerState.READY, "draining": WorkerState.DRAINING}
    found = read_stats(baton_stats(state=state), now=0.0)
    assert found is not None and found.state is expected.get(state, WorkerState.DOWN)


@pytest.mark.parametrize("body", [None, [], {}, "x", {"state": "ready"}, {"served": {}}, {"served": [], "state": 1}])
def test_what_is_no_stats_of_ours(body: Any) -> None:
    assert read_stats(body, now=0.0) is None


def test_odd_values_count_as_not_told() -> None:
    odd = baton_stats(models=[1, "n", None], fingerprint=5, num_blocks="9", max_num_seqs=-1, pools=[], handoff="x")
    found = read_stats(odd, now=0.0)
    assert found is not None
    assert (found.facts.models, found.facts.fingerprint, found.facts.num_blocks) == (("n",), "", 0)
    assert found.facts.max_num_seqs == 0 and found.gauges == WorkerGauges() and found.handoff == {}


@pytest.mark.parametrize(
    ("body", "names"),
    [({"data": [{"id": "a"}, {"id": 3}, 4, {"id": "b"}]}, ("a", "b")), ({}, ()), ({"data": 1}, ()), ([], ())],
)
def test_model_names(body: Any, names: tuple[str, ...]) -> None:
    assert read_models(body) == names


def test_a_server_of_others_is_what_its_spec_says() -> None:
    answers = {"/health": {}, "/v1/models": {"data": [{"id": "x"}]}}

    async def body() -> None:
        async with FakeWorker(answers) as worker:
            mixed = await look(worker)
            assert (mixed.facts.kind, mixed.facts.role, mixed.facts.models) == (WorkerKind.OPENAI, Role.MIXED, ("x",))
            assert mixed.facts.transfer_modes == frozenset()
            prefill = await look(worker, role=Role.PREFILL)
            assert (prefill.facts.role, prefill.facts.transfer_modes) == (Role.PREFILL, {TransferMode.PULL})
            decode = await look(worker, role=Role.DECODE, transfer_mode=TransferMode.PUSH)
            assert (decode.facts.role, decode.facts.transfer_modes) == (Role.DECODE, {TransferMode.PUSH})
            worker.answers["/stats"] = {"load": 1}  # something of its own
            assert (await look(worker)).facts.kind is WorkerKind.OPENAI
            worker.asked.clear()
            await look(worker, kind=WorkerKind.OPENAI)
            assert worker.asked == ["/health", "/v1/models"]
            worker.answers["/v1/models"] = 401
            assert (await look(worker)).facts.models == ()

    run(body)


def test_what_is_not_well() -> None:
    async def body() -> None:
        async with FakeWorker({"/health": 503}) as worker:
            with pytest.raises(HttpError) as unwell:
                await look(worker)
            assert unwell.value.status == 503 and not unwell.value.refused
            worker.answers["/stats"] = None
            with pytest.raises((HttpError, TimeoutError)):
                await look(worker, timeout_s=0.1)
            worker.stop()
            with pytest.raises(HttpError) as refused:
                await look(worker)
            assert refused.value.refused

    run(body)


def test_a_bad_moment_does_not_make_it_another_kind_of_server() -> None:
    async def body() -> None:
        async with FakeWorker({"/health": {}, "/v1/models": {"data": []}}) as worker:
            for answer in (500, 404, {"odd": 1}):
                worker.answers["/stats"] = answer
                with pytest.raises(HttpError):
                    await look(worker, kind=WorkerKind.BATON)
            worker.answers["/stats"] = 502
            with pytest.raises(HttpError):
                await look(worker)

    run(body)


def test_a_watch_looks_again_and_again_and_at_once_when_told() -> None:
    async def body() -> None:
        found: list[Look | HttpError] = []

        def on_look(each: Look | HttpError) -> None:
            found.append(each)
            if len(found) == 2:
                raise RuntimeError("a bug elsewhere")

        async with FakeWorker({"/stats": baton_stats()}) as worker, Http() as http:
            watch = Watch(
                http,
                WorkerSpec(url=worker.url),
                interval_s=0.02,
                patience_s=lambda: 1.0,
                kind=lambda: None,
                on_look=on_look,
            )
            await until(lambda: len(found) >= 4)
            worker.stop()
            await until(lambda: isinstance(found[-1], HttpError) and found[-1].refused)
            await watch.close()
            number = len(found)
            await asyncio.sleep(0.1)
            assert len(found) == number

    run(body)


def test_look_now_does_not_wait_for_the_interval() -> None:
    async def body() -> None:
        found: list[Look | HttpError] = []
        async with FakeWorker({"/stats": baton_stats()}) as worker, Http() as http:
            watch = Watch(
                http,
                WorkerSpec(url=worker.url),
                interval_s=60,
                patience_s=lambda: 1.0,
                kind=lambda: None,
                on_look=found.append,
            )
            await until(lambda: len(found) == 1)
            watch.look_now()
            await until(lambda: len(found) == 2)
            await watch.close()

    run(body)


async def until(true: Callable[[], bool], timeout_s: float = 8.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.005)
