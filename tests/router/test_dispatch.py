"""One request over scripted workers: what the legs are told, what is tried again, what the client gets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from baton.core.handoff import Role, TransferMode
from baton.router.config import RouterConfig
from baton.router.worker import WorkerKind
from tests.router.fixed import FixedPlacer, fixed, worker
from tests.router.routed import Routed, routed
from tests.router.scripted import (
    TICKET,
    Answering,
    Script,
    ScriptedWorker,
    Seen,
    chunk,
    die,
    give,
    refuse,
    scripted,
    take,
    usage,
    wait,
)
from tests.server.harness import events_of

PATH = "/v1/completions"
PUSH, PULL = TransferMode.PUSH, TransferMode.PULL
BODY: dict[str, Any] = {"prompt": "xx xx xx", "max_tokens": 9, "min_tokens": 2}
STREAM = {**BODY, "stream": True}


@dataclass
class Scene:
    """A router in front of scripted workers."""

    router: Routed
    prefills: list[ScriptedWorker]
    decodes: list[ScriptedWorker]

    @property
    def placer(self) -> FixedPlacer:
        placer: FixedPlacer = self.router.fleet
        return placer

    def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.router.http.post(PATH, json=body, headers={"x-request-id": "mine", **headers})

    def text(self, body: dict[str, Any] = STREAM) -> str:
        """Of a streamed answer that is complete."""
        answer = self.post(body)
        assert answer.status_code == 200, answer.text
        return text_of(events_of(answer.content))

    def outcomes(self) -> list[str]:
        return [attempt.outcome for attempt in self.router.last.attempts]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


@contextmanager
def scene(
    mode: TransferMode | None,
    prefills: Sequence[Script] = (give,),
    decodes: Sequence[Script] = (take("abc"),),
    *,
    kind: WorkerKind = WorkerKind.BATON,
    **config: Any,
) -> Iterator[Scene]:
    with ExitStack() as stack:
        workers = stack.enter_context(scripted(*prefills, *decodes))
        givers, takers = workers[: len(prefills)], workers[len(prefills) :]
        made = fixed(
            [worker(each.url, Role.PREFILL, kind) for each in givers],
            [worker(each.url, Role.DECODE, kind) for each in takers],
            mode,
        )
        options = {"max_attempts": 3, **config}
        yield Scene(stack.enter_context(routed(made, RouterConfig(**options))), givers, takers)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_legs_of_a_push(stream: bool) -> None:
    """Fields as HANDOFF section 5 and vLLM's NIXL connectors have them; both legs draw with one seed."""
    both = threading.Barrier(2, timeout=20)

    def meeting(script: Script) -> Script:
        async def met(seen: Seen, answer: Answering) -> None:
            await asyncio.to_thread(both.wait)
            await script(seen, answer)

        return met

    extra = {"stream": True, "stream_options": {"include_usage": True}, "stream_interval": 2} if stream else {}
    client_says = {"kv_transfer_params": {"remote_host": "evil"}, "n": 3, "best_of": None, "logit_bias": {"5": 1}}
    with scene(PUSH, [meeting(give)], [meeting(take("abc"))]) as on:
        answer = on.post({**BODY, **client_says, **extra}, authorization="Bearer k", traceparent="tp", cookie="c")
        assert answer.status_code == 200 and answer.headers["x-request-id"] == "mine"
        (gave,), (took,) = on.prefills[0].seen, on.decodes[0].seen
        (attempt,) = on.router.last.attempts
        assert gave.params == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": attempt.transfer_id,
            **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
        }
        engine_id = "engine-" + on.prefills[0].url.rpartition("/")[2]
        assert took.params == {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": attempt.transfer_id,
            "remote_engine_id": engine_id,
            "remote_request_id": "mine",
            "remote_host": "10.0.0.7",
            "remote_port": 5600,
            "tp_size": 2,
            "pp_size": 1,
        }
        common = {"prompt": BODY["prompt"], "logit_bias": {"5": 1}, "seed": took.body["seed"]}
        theirs = {name: value for name, value in gave.body.items() if name != "kv_transfer_params"}
        assert theirs == {**common, "max_tokens": 1, "min_tokens": 1}
        theirs = {name: value for name, value in took.body.items() if name != "kv_transfer_params"}
        assert theirs == {**common, "max_tokens": 9, "min_tokens": 2, "n": 3, "best_of": None, **extra}
        for leg in (gave, took):
            names = ("authorization", "traceparent", "x-request-id", "content-type", "cookie")
            assert [leg.headers.get(name) for name in names] == ["Bearer k", "tp", "mine", "application/json", None]
        assert on.placer.outcomes() == [(each.worker_id, "done") for each in on.placer.ready()]
        assert [each.has_landed for each in on.placer.taken] == [False, stream]
        found = events_of(answer.content)[-1] if stream else answer.json()
        assert found["usage"] == usage(8, 3, 3)
        assert on.prefills[0].withdrawn == []


def test_the_legs_of_a_pull() -> None:
    """The prefill worker's kv_transfer_params go to the decode worker as they are."""
    with scene(PULL) as on:
        assert on.post(BODY).json()["choices"][0]["text"] == "abc"
        transfer_id = on.router.last.attempts[0].transfer_id
        assert on.decodes[0].seen[0].params == {**TICKET, "transfer_id": transfer_id}
        assert on.text() == "abc" and on.router.last.relayed
        assert on.router.last.attempts[0].transfer_id != transfer_id


@pytest.mark.parametrize("mode", [PUSH, PULL])
def test_a_first_token_is_relayed_before_the_decode_worker_has_it(mode: TransferMode) -> None:
    """The rest of the stream begins behind it, with the first chunk's `created`."""
    hold = threading.Event()

    async def late(seen: Seen, answer: Answering) -> None:
        await asyncio.to_thread(hold.wait, 20)
        await take("abc")(seen, answer)

    with scene(mode, decodes=[late]) as on, on.router.http.stream("POST", PATH, json=STREAM) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        assert json.loads(first[6:])["choices"][0]["text"] == "a"
        hold.set()
        events = events_of(first + b"".join(pieces))
        assert text_of(events) == "abc" and {event["created"] for event in events} == {4}
        assert first.startswith(b"data: ") and on.decodes[0].seen[0].headers["x-baton-tokens"] == "1"
    record = on.router.last
    assert (
        record.relayed and record.num_new_tokens == 3 and (record.num_prompt_tokens, record.num_cached_tokens) == (8, 3)
    )
    (attempt,) = record.attempts
    moments = [record.arrival_s, attempt.placed_s, attempt.prefilled_s, record.first_token_s, attempt.landed_s]
    moments += [attempt.decoded_s or attempt.landed_s, attempt.ended_s, record.ended_s]  # all may come in one piece
    assert moments == sorted(moments)


@pytest.mark.parametrize("fields", [{"stop": "ab"}, {"stop": ["xa"]}, {"n": 2}, {"max_tokens": 2041}, {"tools": [{}]}])
def test_what_is_not_relayed(fields: dict[str, Any]) -> None:
    """A stop string that may begin there ("xa" does not), several choices, a prompt of 8 that leaves too little room,
    tools, whose parser holds text back."""
    with scene(PUSH, decodes=[take("abc")]) as on:
        assert on.text({**STREAM, **fields}) == "abc"
        assert on.router.last.relayed == (fields == {"stop": ["xa"]})


@pytest.mark.parametrize("mode", [PUSH, PULL])
@pytest.mark.parametrize("status", [400, 404, 422, 504])  # 504: another would take as long
def test_a_refusal_is_passed_on_as_it_is(mode: TransferMode, status: int) -> None:
    for prefill, decode in ((refuse(status), wait), (wait if mode is PUSH else give, refuse(status))):
        with scene(mode, [prefill], [decode]) as on:
            for body in (BODY, {**STREAM, "n": 2}):
                answer = on.post(body)
                assert answer.status_code == status and answer.json()["error"]["param"] == "n"
                assert len(on.router.last.attempts) == 1 and on.router.last.status == status
            for each in (*on.prefills, *on.decodes):
                each.until(lambda each=each: all(seen.left or seen.complete for seen in each.seen))
            ends = {outcome for _, outcome in on.placer.outcomes()}
            assert ends <= {"failed" if status == 504 else "refused", "cancelled", "done"}


@pytest.mark.parametrize("mode", [PUSH, PULL])
@pytest.mark.parametrize("status", [429, 500, 502, 503])
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
def test_a_failed_prefill_is_tried_elsewhere(mode: TransferMode, status: int, body: dict[str, Any]) -> None:
    with scene(mode, [refuse(status), give]) as on:
        answer = on.post(body)
        text = text_of(events_of(answer.content)) if body is STREAM else answer.json()["choices"][0]["text"]
        assert text == "abc"
        first, second = on.router.last.attempts
        assert first.transfer_id != second.transfer_id and second.outcome == "done"
        bad = on.placer.prefills[0].worker_id
        assert on.placer.avoided[-1] == {bad}
        assert (bad, "busy" if status in (429, 503) else "failed") in on.placer.outcomes()


@pytest.mark.parametrize("mode", [PUSH, PULL, None])
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
def test_a_dead_decode_worker_before_its_first_token(mode: TransferMode | None, body: dict[str, Any]) -> None:
    """The prefill worker is told that nobody comes; both attempts draw with the same seed."""

    async def dead(seen: Seen, answer: Answering) -> None:
        raise DeadError

    with scene(mode, decodes=[dead, take("abc")]) as on:
        answer = on.post(body)
        text = text_of(events_of(answer.content)) if body is STREAM else answer.json()["choices"][0]["text"]
        assert text == "abc"
        first, second = on.router.last.attempts
        assert second.outcome == "done" and first.outcome != "done"
        if mode is not None:
            on.prefills[0].until(lambda: on.prefills[0].withdrawn == [first.transfer_id])
            seeds = {seen.body["seed"] for each in (*on.prefills, *on.decodes) for seen in each.seen}
            assert len(seeds) == 1


class DeadError(Exception):
    """A script breaks the connection."""


async def said_503(answer: Answering) -> None:
    await answer.event({"error": {"message": "no KV", "type": "T", "param": None, "code": 503}})
    await answer.done()


@pytest.mark.parametrize("mode", [PUSH, PULL, None])
@pytest.mark.parametrize("end", [die, said_503])
@pytest.mark.parametrize("shown", ["a", "ab", "abcde"])
def test_a_stream_is_gone_on_with(mode: TransferMode | None, end: Any, shown: str) -> None:
    """The next worker is given the ids of what the client has, and no hand-off; what it repeats is left out."""
    with scene(mode, decodes=[take(shown, then=end), take("abcdefg", pieces=4)]) as on:
        answer = on.post({**STREAM, "stream_options": {"include_usage": True}})
        events = events_of(answer.content)
        assert text_of(events) == "abcdefg", events
        assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]].count("stop") == 1
        again = on.decodes[1].seen[0]
        assert again.body["resume_token_ids"] == list(shown.encode()) and again.params == {}
        assert again.body["max_tokens"] == 9 and again.headers["x-baton-tokens"] == "1"
        assert events[-1]["usage"] == usage(8, 7, 8 if mode is None else 3)
        record = on.router.last
        assert [attempt.continues for attempt in record.attempts] == [0, len(shown)]
        assert record.attempts[1].mode == "single" and record.num_new_tokens == 7 and record.error == ""
        assert on.placer.demands[1].splittable is False


def test_several_deaths() -> None:
    decodes = [take("ab", then=die), take("abcd", then=die), take("abcde")]
    with scene(PUSH, decodes=decodes, max_attempts=4) as on:
        assert on.text() == "abcde"
        assert [attempt.continues for attempt in on.router.last.attempts] == [0, 2, 4]
        assert on.decodes[2].seen[0].body["resume_token_ids"] == [97, 98, 99, 100]


def test_death_after_the_last_chunk() -> None:
    """Only the end is left to be said."""

    async def cut(seen: Seen, answer: Answering) -> None:
        await answer.stream()
        await answer.event(chunk("abc", "stop"), [97, 98, 99])
        await die(answer)

    with scene(PUSH, decodes=[cut, take("abc")]) as on:
        events = events_of(on.post(STREAM).content)
        assert text_of(events) == "abc"
        assert sum(event["choices"][0]["finish_reason"] == "stop" for event in events) == 1


@pytest.mark.parametrize("fields", [{"n": 2}, {"response_format": {"type": "json_object"}}, {"tools": [{}]}])
def test_what_cannot_be_gone_on_with_ends_in_an_error(fields: dict[str, Any]) -> None:
    with scene(PUSH, decodes=[take("ab", then=die), take("abc")]) as on:
        answer = on.post({**STREAM, **fields})
        events = events_of(answer.content)
        assert answer.status_code == 200 and text_of(events[:-1]) == "ab"
        assert events[-1]["error"]["code"] == 503
        assert on.decodes[1].seen == [] and on.router.last.error


def test_a_worker_that_says_something_else() -> None:
    """Never wrong text: the client is told."""
    with scene(PUSH, decodes=[take("ab", then=die), take("axyz")]) as on:
        events = events_of(on.post(STREAM).content)
        assert text_of(events[:-1]) == "ab" and events[-1]["error"]["code"] == 503


def test_other_errors_inside_a_stream_are_the_answer() -> None:
    async def said_422(answer: Answering) -> None:
        await answer.event({"error": {"message": "no grammar", "type": "T", "param": None, "code": 422}})
        await answer.done()

    with scene(PUSH, decodes=[take("ab", then=said_422), take("abc")]) as on:
        events = events_of(on.post(STREAM).content)
        assert text_of(events[:-1]) == "ab" and events[-1]["error"]["message"] == "no grammar"
        assert on.decodes[1].seen == []


def test_when_all_attempts_fail() -> None:
    with scene(PUSH, [refuse(429, retry_after="7")]) as on:
        answer = on.post(BODY)
        assert answer.status_code == 429 and answer.headers["retry-after"] == "7"
        assert answer.json()["error"]["message"] == "refused with 429" and len(on.router.last.attempts) == 3
    with scene(None, decodes=[take("abc")]) as on:
        on.placer.decodes = [worker("http://127.0.0.1:1", Role.DECODE)]
        answer = on.post(BODY)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert {outcome for _, outcome in on.placer.outcomes()} == {"failed"}
        on.placer.decodes = []
        assert on.post(BODY).json()["error"]["message"] == "no worker is well"


def test_a_prefill_without_a_ticket() -> None:
    """A worker that was not started for it is an error, tried elsewhere; an answer that is over is none."""

    async def plain(seen: Seen, answer: Answering) -> None:
        await answer.whole(chunk("a", "length", usage=usage(8, 1)))

    async def over(seen: Seen, answer: Answering) -> None:
        await answer.whole(chunk("a", "stop", usage=usage(8, 1), kv_transfer_params=None))

    with scene(PULL, [plain, give]) as on:
        assert on.post(BODY).json()["choices"][0]["text"] == "abc"
        assert "kv_transfer_params" in on.outcomes()[0] and on.outcomes()[1] == "done"
    with scene(PULL, [over], [take("a")]) as on:
        assert on.post(BODY).json()["choices"][0]["text"] == "a"
        assert "kv_transfer_params" not in on.decodes[0].seen[0].body


def test_the_deadline() -> None:
    with scene(PUSH, [wait], [wait], request_timeout_s=0.3) as on:
        assert on.post(BODY).status_code == 504 and on.router.last.status == 504
        for each in (*on.prefills, *on.decodes):
            each.until(lambda each=each: each.seen[0].left)
    with scene(PUSH, [give], [wait], request_timeout_s=0.3) as on:
        events = events_of(on.post(STREAM).content)
        assert text_of(events[:-1]) == "a" and events[-1]["error"]["code"] == 504


@pytest.mark.parametrize("mode", [PUSH, PULL])
def test_a_worker_that_is_lost(mode: TransferMode) -> None:
    """The fleet says so: its leg is given up, though its connection is open."""

    async def take_second(seen: Seen, answer: Answering) -> None:
        await (wait if len(on.decodes[0].seen) == 1 and mode is PUSH else take("abc"))(seen, answer)

    with scene(mode, [wait, give], [take_second]) as on:
        bad = on.placer.prefills[0].worker_id

        async def lose() -> None:
            while not on.placer.taken:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            on.placer.lost[bad].set()

        losing = asyncio.run_coroutine_threadsafe(lose(), on.router.loop)
        assert on.text() == "abc"
        losing.result(5)
        on.prefills[0].until(lambda: on.prefills[0].seen[0].left)
        assert "lost" in on.outcomes()[0] and (bad, "failed") in on.placer.outcomes()


@pytest.mark.parametrize("lost", [False, True], ids=["dead", "lost"])
def test_a_prefill_worker_that_fails_after_the_decode_worker_has_begun(lost: bool) -> None:
    """The prompt has arrived: what the prefill worker still has to say is of no use."""
    failed = threading.Event()

    async def fail(seen: Seen, answer: Answering) -> None:
        while not any(hold.has_landed for hold in on.placer.taken):
            await asyncio.sleep(0.01)
        if lost:
            on.router.loop.call_soon_threadsafe(on.placer.lost[on.placer.prefills[0].worker_id].set)
        failed.set()
        await asyncio.sleep(60 if lost else 0)
        raise DeadError

    async def slow(seen: Seen, answer: Answering) -> None:
        await answer.stream()
        await answer.event(chunk("a"), [97])
        await asyncio.to_thread(failed.wait, 20)
        await asyncio.sleep(0.1)
        await answer.event(chunk("bc", "stop"), [98, 99])
        await answer.done()

    with scene(PUSH, [fail], [slow]) as on:
        assert on.text() == "abc" and on.outcomes() == ["done"]


def test_workers_of_others() -> None:
    """Their streams pass as they are, without our header and seed; nothing is gone on with."""
    kind = WorkerKind.OPENAI
    with scene(PULL, kind=kind) as on:
        assert on.text() == "abc" and not on.router.last.relayed
        for each in (*on.prefills, *on.decodes):
            assert "seed" not in each.seen[0].body and "x-baton-tokens" not in each.seen[0].headers
        events = events_of(on.post({**STREAM, "stream_options": {"include_usage": True}}).content)
        assert events[-1]["usage"] == usage(8, 3, 3)
    with scene(PULL, decodes=[take("ab", then=die), take("abc")], kind=kind) as on:
        events = events_of(on.post(STREAM).content)
        assert text_of(events[:-1]) == "ab" and events[-1]["error"]["code"] == 503
        assert on.prefills[0].withdrawn == []


def test_a_worker_with_a_key_of_its_own() -> None:
    with scene(None) as on:
        from dataclasses import replace

        on.placer.decodes = [replace(on.placer.decodes[0], api_key="own")]
        assert on.post(BODY, authorization="Bearer client").status_code == 200
        assert on.decodes[0].seen[0].headers["authorization"] == "Bearer own"
