"""The fleet over real connections: workers that restart, fall silent, are killed, drain, register."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from baton.core.errors import ConfigError
from baton.core.handoff import Role, TransferMode
from baton.router.config import Mode, RouterConfig
from baton.router.demand import Demand
from baton.router.fleet import Fleet
from baton.router.http import Http
from baton.router.worker import Outcome, Placement, WorkerSpec, WorkerState
from baton.web.errors import ApiError
from tests.router.fake_worker import FakeWorker, baton_stats
from tests.router.views import demand

PROGRAM = Path(__file__).with_name("fake_worker.py")
READY, DOWN, DRAINING = WorkerState.READY, WorkerState.DOWN, WorkerState.DRAINING


QUICK = {"health_interval_s": 0.02, "health_timeout_s": 0.3, "lease_s": 0.4, "outage_wait_s": 0.0}


def config(**changes: Any) -> RouterConfig:
    return RouterConfig(**QUICK | changes)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(bounded())


async def until(true: Callable[[], Any], timeout_s: float = 8.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def fleet_of(*urls: str, **changes: Any) -> AsyncIterator[Fleet]:
    async with Http() as http, Fleet(config(**changes), http, [WorkerSpec(url=url) for url in urls]) as fleet:
        await fleet.members.wait_seen(5)
        yield fleet


@asynccontextmanager
async def pair(num_prefill: int = 1, num_decode: int = 1, **changes: Any) -> AsyncIterator[Any]:
    """(fleet, prefill workers, decode workers)."""
    async with AsyncExitStack() as stack:
        made = {
            role: [
                await stack.enter_async_context(FakeWorker({"/stats": baton_stats(role, f"{role}{number}")}))
                for number in range(count)
            ]
            for role, count in (("prefill", num_prefill), ("decode", num_decode))
        }
        urls = [worker.url for workers in made.values() for worker in workers]
        fleet = await stack.enter_async_context(fleet_of(*urls, **changes))
        yield fleet, made["prefill"], made["decode"]


async def place(fleet: Fleet, wants: Demand | None = None, wait_s: float = 5, **options: Any) -> Placement:
    deadline_s = asyncio.get_running_loop().time() + wait_s
    return await fleet.place(wants or demand(), deadline_s=deadline_s, **options)


def state(fleet: Fleet, worker: FakeWorker) -> WorkerState:
    return fleet.members.find(worker.url).state


def panel(fleet: Fleet, worker: FakeWorker) -> Any:
    (row,) = (each for each in fleet.panel().workers if each.worker_id == worker.url)
    return row


def test_a_push_pair_is_placed_held_and_counted() -> None:
    async def body() -> None:
        async with pair() as (fleet, (p,), (d,)):
            placement = await place(fleet)
            assert placement.prefill and placement.decode
            assert (placement.prefill.url, placement.decode.url) == (p.url, d.url)
            assert placement.mode is TransferMode.PUSH and placement.prefill.facts.peer is not None
            holds = [fleet.hold(worker, demand(), transfer_id="t") for worker in (placement.prefill, placement.decode)]
            # 32 tokens of prompt: the prefill worker makes 1 more, the decode worker 16, from KV that comes to it
            given, taken = panel(fleet, p), panel(fleet, d)
            assert (given.num_requests, given.num_tokens, given.inbound_tokens) == (1, 33, 0)
            assert (taken.num_requests, taken.num_tokens, taken.inbound_tokens) == (1, 48, 32)
            holds[1].landed()
            holds[1].landed()
            assert panel(fleet, d).inbound_tokens == 0
            for hold in (*holds, *holds):
                assert not hold.lost.is_set()
                hold.release(Outcome.DONE)
            for worker in (p, d):
                row = panel(fleet, worker)
                assert (row.num_requests, row.num_tokens, row.inbound_tokens) == (0, 0, 0)

    run(body)


def test_a_pull_chooses_its_decode_worker_late() -> None:
    async def body() -> None:
        async with pair(num_decode=2, mode=Mode.PULL) as (fleet, (p,), decodes):
            placement = await place(fleet)
            assert placement.prefill and placement.prefill.url == p.url and placement.decode is None
            deadline_s = asyncio.get_running_loop().time() + 5
            chosen = await fleet.place_decode(demand(), placement.prefill, deadline_s=deadline_s)
            fleet.hold(chosen, demand(), transfer_id="t")
            other = await fleet.place_decode(demand(), placement.prefill, deadline_s=deadline_s)
            assert {chosen.url, other.url} == {worker.url for worker in decodes}
            again = await fleet.place_decode(
                demand(), placement.prefill, avoid=frozenset([other.worker_id]), deadline_s=deadline_s
            )
            assert again.url == chosen.url

    run(body)


def test_the_full_wait_and_a_release_lets_one_in() -> None:
    async def body() -> None:
        async with pair(mode=Mode.PUSH) as (fleet, _, _):
            placement = await place(fleet)
            assert placement.decode
            holds = [fleet.hold(placement.decode, demand()) for _ in range(6)]  # 4 run, 2 may wait
            waiting = [asyncio.create_task(place_and_hold(fleet)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in waiting) and fleet.panel().num_queued == 3
            start_s = time.monotonic()
            holds[0].release(Outcome.DONE)
            await until(lambda: waiting[0].done())
            assert time.monotonic() - start_s < 0.5
            await asyncio.sleep(0.1)
            assert not waiting[1].done()
            for task in waiting:
                task.cancel()

    run(body)


def test_in_auto_prompts_are_prefilled_ahead_while_all_decode_workers_are_full() -> None:
    """Over the same pair: what is pushed while there is room is pulled then, at most four at a time."""

    async def body() -> None:
        async with pair() as (fleet, (p,), (d,)):
            pushed = await place(fleet)
            assert pushed.mode is TransferMode.PUSH and pushed.decode
            holds = [fleet.hold(pushed.decode, demand(), transfer_id="t") for _ in range(6)]  # 4 run, 2 may wait
            prefilled: list[str] = []
            late = [asyncio.create_task(pull_and_hold(fleet, prefilled)) for _ in range(5)]
            await until(lambda: len(prefilled) == 4)
            await asyncio.sleep(0.1)
            assert prefilled == [p.url] * 4 and not any(task.done() for task in late)
            assert fleet.panel().num_queued == 5  # four for a decode worker, one to be prefilled
            holds[0].release(Outcome.DONE)
            await until(lambda: any(task.done() for task in late))
            await asyncio.sleep(0.1)
            assert [task.result() for task in late if task.done()] == [d.url]
            assert len(prefilled) == 5 and fleet.panel().num_queued == 4
            for hold in holds[1:]:
                hold.release(Outcome.DONE)
            assert await asyncio.gather(*late) == [d.url] * 5
            assert panel(fleet, d).num_requests == 5

    run(body)


async def pull_and_hold(fleet: Fleet, prefilled: list[str]) -> str:
    """The decode worker that is chosen when the prefill, which takes no time, has ended."""
    placement = await place(fleet)
    assert placement.mode is TransferMode.PULL and placement.prefill and placement.decode is None
    fleet.hold(placement.prefill, demand(), transfer_id="t").release(Outcome.DONE)
    prefilled.append(placement.prefill.url)
    deadline_s = asyncio.get_running_loop().time() + 5
    decode = await fleet.place_decode(demand(), placement.prefill, deadline_s=deadline_s)
    fleet.hold(decode, demand(), transfer_id="t")
    return decode.url


async def place_and_hold(fleet: Fleet) -> None:
    placement = await place(fleet)
    for worker in filter(None, (placement.prefill, placement.decode)):
        fleet.hold(worker, demand(), transfer_id="t")


def test_the_queue_has_an_end_and_a_deadline() -> None:
    async def body() -> None:
        async with pair(max_queue=1, mode=Mode.PUSH) as (fleet, _, _):
            placement = await place(fleet)
            assert placement.decode
            for _ in range(6):
                fleet.hold(placement.decode, demand())
            first = asyncio.create_task(place(fleet, wait_s=0.3))
            await asyncio.sleep(0.05)
            for task, status in ((place(fleet), 429), (first, 504)):
                with pytest.raises(ApiError) as caught:
                    await task
                assert caught.value.status == status

    run(body)


def test_another_incarnation_on_the_same_port() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            old = (await place(fleet)).decode
            assert old is not None
            hold = fleet.hold(old, demand())
            d.answers["/stats"] = baton_stats("decode", "another", num_blocks=50)
            await asyncio.wait_for(hold.lost.wait(), 2)
            new = (await place(fleet)).decode
            assert new is not None and (new.facts.incarnation, new.facts.num_blocks) == ("another", 50)
            assert panel(fleet, d).num_requests == 0  # what the old one had does not burden the new one
            hold.release(Outcome.FAILED, "lost")
            assert panel(fleet, d).num_requests == 0
            assert fleet.hold(old, demand()).lost.is_set()

    run(body)


def test_silence_ends_the_holds_and_a_good_look_brings_it_back() -> None:
    async def body() -> None:
        async with pair(num_decode=2, health_timeout_s=0.8) as (fleet, _, (d, other)):
            placement = await place(fleet, avoid=frozenset([other.url]))
            assert placement.decode and placement.decode.url == d.url
            hold = fleet.hold(placement.decode, demand())
            stats, d.answers["/stats"] = d.answers["/stats"], None
            start_s = time.monotonic()
            await asyncio.sleep(0.1)
            assert state(fleet, d) is READY and not hold.lost.is_set()  # not yet
            await asyncio.wait_for(hold.lost.wait(), 3)
            assert 0.6 < time.monotonic() - start_s < 2  # health_timeout_s is 0.8, from the last good look on
            assert state(fleet, d) is DOWN and "no answer" in panel(fleet, d).note
            for _ in range(4):
                placement = await place(fleet)
                assert placement.decode and placement.decode.url == other.url
            hold.release(Outcome.CANCELLED)
            d.answers["/stats"] = stats
            await until(lambda: state(fleet, d) is READY)
            again = (await place(fleet, avoid=frozenset([other.url]))).decode
            assert again and again.url == d.url
            assert not fleet.hold(again, demand()).lost.is_set()

    run(body)


def test_an_engine_that_is_silent_behind_a_server_that_answers() -> None:
    async def body() -> None:
        async with pair(engine_timeout_s=5.0, mode=Mode.PUSH) as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            d.answers["/stats"]["engine_silent_s"] = 0.4  # over health_timeout_s: perhaps a long step
            await until(lambda: "silent" in panel(fleet, d).note)
            waiting = asyncio.create_task(place(fleet))
            await asyncio.sleep(0.1)
            assert not waiting.done() and not hold.lost.is_set() and state(fleet, d) is READY
            d.answers["/stats"]["engine_silent_s"] = 0.0
            await asyncio.wait_for(waiting, 2)
            d.answers["/stats"]["engine_silent_s"] = 5.0
            await asyncio.wait_for(hold.lost.wait(), 2)
            assert state(fleet, d) is DOWN and "nothing for 5.0 s" in panel(fleet, d).note
            with pytest.raises(ApiError) as caught:
                await place(fleet)
            assert caught.value.status == 503
            d.answers["/stats"]["engine_silent_s"] = 0.1
            await until(lambda: state(fleet, d) is READY)

    run(body)


def test_a_request_waits_a_while_for_a_worker_that_may_come_back() -> None:
    async def body() -> None:
        async with pair(outage_wait_s=1.0) as (fleet, _, (d,)):
            d.answers["/stats"]["state"] = "dead"
            await until(lambda: state(fleet, d) is DOWN)
            waiting = asyncio.create_task(place(fleet))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            d.answers["/stats"]["state"] = "ready"
            assert (await asyncio.wait_for(waiting, 0.8)).decode is not None
            d.answers["/stats"]["state"] = "dead"
            await until(lambda: state(fleet, d) is DOWN)
            start_s = time.monotonic()
            waits = [asyncio.create_task(place(fleet)) for _ in range(3)]
            answers = await asyncio.gather(*waits, return_exceptions=True)
            assert [getattr(answer, "status", 200) for answer in answers] == [503] * 3
            assert 0.9 < time.monotonic() - start_s < 5
            fleet.members.drain(fleet.members.find(d.url))  # a person took it out: there is nothing to wait for
            start_s = time.monotonic()
            with pytest.raises(ApiError):
                await place(fleet)
            assert time.monotonic() - start_s < 0.5

    run(body)


@pytest.mark.parametrize("said", ["dead", "starting"])
def test_a_server_that_says_its_engine_is_gone(said: str) -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            d.answers["/stats"]["state"] = said
            await asyncio.wait_for(hold.lost.wait(), 2)
            assert state(fleet, d) is (DOWN if said == "dead" else WorkerState.STARTING)

    run(body)


def spawn(role: str, incarnation: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(port), role, incarnation], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_that_is_killed_is_down_at_once_and_back_when_it_is_started_again() -> None:
    process, url = spawn("decode", "one")
    processes = [process]

    async def body() -> None:
        async with (
            FakeWorker({"/stats": baton_stats("prefill")}) as p,
            fleet_of(p.url, url, health_timeout_s=5.0) as fleet,
        ):
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            process.send_signal(signal.SIGKILL)
            start_s = time.monotonic()
            await asyncio.wait_for(hold.lost.wait(), 2)
            assert time.monotonic() - start_s < 2  # long before health_timeout_s: connections are refused
            with pytest.raises(ApiError) as caught:
                await place(fleet)
            assert caught.value.status == 503 and caught.value.headers["Retry-After"]
            process.wait()
            again, _ = await asyncio.to_thread(spawn, "decode", "two", int(url.rpartition(":")[2]))
            processes.append(again)
            await until(lambda: fleet.members.find(url).state is READY)
            placement = await place(fleet)
            assert placement.decode and placement.decode.facts.incarnation == "two"

    try:
        run(body)
    finally:
        for each in processes:
            each.kill()
            each.wait()


def test_a_process_that_is_stopped_is_down_after_the_timeout_and_goes_on_later() -> None:
    process, url = spawn("mixed", "one")

    async def body() -> None:
        async with fleet_of(url) as fleet:
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            os.kill(process.pid, signal.SIGSTOP)
            await asyncio.wait_for(hold.lost.wait(), 3)
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: fleet.members.find(url).state is READY)

    try:
        run(body)
    finally:
        process.kill()
        process.wait()


def test_failures_open_the_breaker_and_one_request_tries_later() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            for _ in range(3):
                fleet.hold(placement.decode, demand()).release(Outcome.FAILED, "reset")
            assert panel(fleet, d).breaker == "open"
            with pytest.raises(ApiError) as caught:
                await place(fleet)
            assert caught.value.status == 503
            await until(lambda: panel(fleet, d).breaker == "half-open")
            placement = await place(fleet)
            assert placement.decode
            probe = fleet.hold(placement.decode, demand())
            with pytest.raises(ApiError):
                await place(fleet)
            probe.release(Outcome.DONE)
            await place(fleet)

    run(body)


def test_a_failure_makes_the_fleet_look_at_once() -> None:
    async def body() -> None:
        async with pair(health_interval_s=60.0, health_timeout_s=60.0) as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            first, second = (fleet.hold(placement.decode, demand()) for _ in range(2))
            d.stop()
            first.release(Outcome.FAILED, "connection refused")
            await asyncio.wait_for(second.lost.wait(), 2)

    run(body)


def test_a_draining_giver_leaves_when_nobody_needs_its_blocks() -> None:
    async def body() -> None:
        async with pair() as (fleet, (p,), (d,)):
            placement = await place(fleet)
            assert placement.prefill
            hold = fleet.hold(placement.prefill, demand(), transfer_id="t")
            fleet.members.remove(fleet.members.find(p.url))
            assert state(fleet, p) is DRAINING
            assert (await place(fleet)).prefill is None  # nothing new: the decode worker prefills
            await asyncio.sleep(0.1)
            p.answers["/stats"]["pools"] = {"num_leased": 1}
            await until(lambda: panel(fleet, p).gauges.num_leased == 1)
            hold.release(Outcome.DONE)
            for pools in ({"num_leased": 1}, {"num_in_flight": 1}, {"pinned_blocks": 1}):
                p.answers["/stats"]["pools"] = pools
                await asyncio.sleep(0.1)
                assert state(fleet, p) is DRAINING
            assert not hold.lost.is_set()
            p.answers["/stats"]["pools"] = {}
            await until(lambda: fleet.members.get(p.url) is None)
            assert [worker.url for worker in fleet.panel().workers] == [d.url]

    run(body)


def test_a_giver_is_not_drained_by_a_look_from_before_its_last_leg_ended() -> None:
    async def body() -> None:
        async with pair(health_interval_s=60.0) as (fleet, (p,), _):
            placement = await place(fleet)
            assert placement.prefill
            hold = fleet.hold(placement.prefill, demand(), transfer_id="t")
            member = fleet.members.find(p.url)
            fleet.members.remove(member)
            hold.release(Outcome.DONE)  # its blocks are leased now, and the last look does not know
            assert fleet.members.get(p.url) is member and not member.drained()

    run(body)


def test_a_draining_taker_leaves_when_its_requests_ended() -> None:
    async def body() -> None:
        async with pair(num_decode=2) as (fleet, _, (d, other)):
            placement = await place(fleet, avoid=frozenset([other.url]))
            assert placement.decode
            hold = fleet.hold(placement.decode, demand(), transfer_id="t")
            fleet.members.remove(fleet.members.find(d.url))
            placement = await place(fleet)
            assert placement.decode and placement.decode.url == other.url
            assert fleet.members.get(d.url) is not None
            hold.release(Outcome.DONE)
            assert fleet.members.get(d.url) is None and not fleet.panel().workers[1:][1:]

    run(body)


def test_removal_at_once_loses_what_runs() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            fleet.members.remove(fleet.members.find(d.url), now=True)
            assert hold.lost.is_set() and fleet.members.get(d.url) is None
            hold.release(Outcome.FAILED)

    run(body)


def test_drain_is_undone_by_naming_it_again_but_not_by_its_own_registration() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            member = fleet.members.find(d.url)
            fleet.members.drain(member)
            fleet.members.add(member.spec, leased=True)
            assert state(fleet, d) is DRAINING
            fleet.members.add(member.spec)
            assert state(fleet, d) is READY

    run(body)


def test_a_registration_does_not_change_what_a_person_has_said() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            placement = await place(fleet)
            assert placement.decode
            hold = fleet.hold(placement.decode, demand())
            member = fleet.members.add(WorkerSpec(url=d.url, api_key="k"), leased=True)
            assert not member.leased and member.spec.api_key is None and not hold.lost.is_set()
            assert fleet.members.add(WorkerSpec(url=d.url, api_key="k")) is not member  # a person says otherwise
            assert hold.lost.is_set()

    run(body)


def test_a_registered_worker_stays_while_it_is_heard_of() -> None:
    async def body() -> None:
        async with fleet_of() as fleet, FakeWorker({"/stats": baton_stats()}) as worker:
            with pytest.raises(ApiError) as caught:
                await place(fleet)
            assert caught.value.status == 503
            fleet.members.add(WorkerSpec(url=worker.url), leased=True)
            await until(lambda: state(fleet, worker) is READY)
            await asyncio.sleep(0.6)  # lease_s is 0.4: good looks renew it
            assert state(fleet, worker) is READY
            worker.stop()
            await until(lambda: state(fleet, worker) is DOWN)
            fleet.members.add(WorkerSpec(url=worker.url), leased=True)  # it is slow, but alive
            await asyncio.sleep(0.2)
            assert fleet.members.get(worker.url) is not None
            await until(lambda: fleet.members.get(worker.url) is None)

    run(body)


def test_a_worker_with_another_role_than_named_gets_nothing_and_says_why() -> None:
    async def body() -> None:
        async with pair() as (fleet, _, (d,)):
            fleet.members.add(WorkerSpec(url=d.url, role=Role.PREFILL))
            await until(lambda: "named as a prefill worker" in panel(fleet, d).note)
            with pytest.raises(ApiError):
                await place(fleet)

    run(body)


def test_why_workers_are_not_paired_is_shown_at_both() -> None:
    async def body() -> None:
        async with pair() as (fleet, (p,), (d,)):
            assert panel(fleet, p).unpaired == {} and panel(fleet, d).unpaired == {}
            d.answers["/stats"] = baton_stats("decode", "new", fingerprint="other")
            await until(lambda: panel(fleet, d).unpaired)
            assert "weights differ" in panel(fleet, d).unpaired[p.url]
            assert "weights differ" in panel(fleet, p).unpaired[d.url]
            assert (await place(fleet)).reason == "no pair fits"

    run(body)


def test_prefix_affinity_follows_the_prompts_and_forgets_with_the_incarnation() -> None:
    async def body() -> None:
        async with pair(num_decode=3, decode_policy="prefix_affinity") as (fleet, _, decodes):
            wants = demand(256, prefix=b"x" * 1024)
            first = (await place(fleet, wants)).decode
            assert first is not None
            fleet.hold(first, wants).release(Outcome.DONE)
            for _ in range(5):
                assert (await place(fleet, wants)).decode == first
            (worker,) = (each for each in decodes if each.url == first.url)
            worker.answers["/stats"] = baton_stats("decode", "new")
            await until(lambda: fleet.members.find(first.url).ref().facts.incarnation == "new")
            chosen = {placement.decode.url for _ in range(9) if (placement := await place(fleet, wants)).decode}
            assert len(chosen) == 3

    run(body)


def test_a_mostly_cached_prompt_stays_where_it_is_cached() -> None:
    async def body() -> None:
        async with pair(num_decode=2, min_prefill_tokens=64) as (fleet, _, _):
            wants = demand(256, prefix=b"x" * 1024)
            placement = await place(fleet, wants)
            assert placement.prefill and placement.decode
            fleet.hold(placement.decode, wants, transfer_id="t").release(Outcome.DONE)
            again = await place(fleet, wants)
            assert again.prefill is None and again.decode == placement.decode and again.reason == "little to prefill"

    run(body)


def test_servers_of_others() -> None:
    async def body() -> None:
        answers = {"/health": {}, "/v1/models": {"data": [{"id": "m"}]}}
        async with FakeWorker(answers) as p, FakeWorker(answers) as d, Http() as http:
            specs = [WorkerSpec(url=p.url, role=Role.PREFILL), WorkerSpec(url=d.url, role=Role.DECODE)]
            async with Fleet(config(), http, specs) as fleet:
                await fleet.members.wait_seen(5)
                placement = await place(fleet)
                assert placement.prefill and placement.mode is TransferMode.PULL
                decode = await fleet.place_decode(demand(), placement.prefill, deadline_s=1e12)
                assert decode.url == d.url
                hold = fleet.hold(decode, demand(), transfer_id="t")
                d.stop()
                await asyncio.wait_for(hold.lost.wait(), 2)
                await d.start()
                await until(lambda: state(fleet, d) is READY)
                again = await fleet.place_decode(demand(), placement.prefill, deadline_s=1e12)
                assert again.facts.incarnation != decode.facts.incarnation

    run(body)


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="least_tokens"):
        Fleet(config(prefill_policy="best"), Http())
