"""The order of those that wait, and that nobody waits for nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from baton.router.line import Line
from baton.web.errors import ApiError


class Room:
    """Places that are taken as `Fleet` does: found by `attempt`, taken by the caller as soon as it has one."""

    def __init__(self, places: int = 0) -> None:
        self.places = places
        self.line = Line(100)
        self.taken: list[str] = []

    async def enter(self, name: str, kind: str = "k", rank: int = 0, wait_s: float = 5) -> None:
        deadline_s = asyncio.get_running_loop().time() + wait_s
        await self.line.enter(kind, (rank,), lambda: name if self.places > 0 else None, deadline_s=deadline_s)
        self.places -= 1
        assert self.places >= 0, "two were given one place"
        self.taken.append(name)

    async def free(self, places: int = 1) -> None:
        self.places += places
        self.line.wake()
        await settle()


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def run(body: Callable[[Room], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await body(Room())

    asyncio.run(bounded())


async def start(room: Room, *names: str, **options: object) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(room.enter(name, **options)) for name in names]  # type: ignore[arg-type]
    await settle()
    return tasks


def test_whoever_finds_room_does_not_wait() -> None:
    async def body(room: Room) -> None:
        room.places = 2
        await start(room, "a", "b", "c")
        assert room.taken == ["a", "b"] and room.line.num_waiting == 1

    run(body)


def test_first_come_first_served_and_one_place_is_given_once() -> None:
    async def body(room: Room) -> None:
        await start(room, "a", "b", "c", "d")
        await room.free()
        assert room.taken == ["a"]
        await room.free(2)
        assert room.taken == ["a", "b", "c"]

    run(body)


def test_several_places_at_once_all_find_somebody() -> None:
    async def body(room: Room) -> None:
        await start(room, *"abcdef")
        await room.free(5)
        assert room.taken == list("abcde") and room.places == 0

    run(body)


def test_a_newcomer_does_not_overtake_those_that_wait() -> None:
    async def body(room: Room) -> None:
        await start(room, "a")
        room.places = 1  # nobody was woken yet
        await start(room, "b")
        assert room.taken == []
        await room.free(0)
        assert room.taken == ["a"]

    run(body)


def test_rank_goes_before_arrival() -> None:
    async def body(room: Room) -> None:
        await start(room, "low", rank=5)
        await start(room, "high", rank=1)
        await room.free()
        assert room.taken == ["high"]
        room.places = 1
        await start(room, "higher", rank=0)  # before all that wait: it need not wait to be woken
        assert room.taken == ["high", "higher"]

    run(body)


def test_kinds_do_not_wait_for_one_another() -> None:
    async def body(room: Room) -> None:
        stuck = asyncio.create_task(room.line.enter("other", (0,), lambda: None, deadline_s=1e12))
        await start(room, "a")
        await room.free()
        assert room.taken == ["a"] and not stuck.done()
        stuck.cancel()

    run(body)


def test_one_that_leaves_hands_its_turn_on() -> None:
    async def body(room: Room) -> None:
        first, *_ = await start(room, "a", "b")
        room.places = 1
        room.line.wake()  # a is woken ...
        first.cancel()  # ... and leaves before it runs
        await settle()
        assert room.taken == ["b"] and room.line.num_waiting == 0

    run(body)


def test_an_attempt_that_raises_ends_the_wait_of_each() -> None:
    async def body(room: Room) -> None:
        hope = True

        def attempt() -> None:
            if not hope:
                raise ApiError(503, "all are gone")

        tasks = [asyncio.create_task(room.line.enter("k", (0,), attempt, deadline_s=1e12)) for _ in range(5)]
        await settle()
        hope = False
        room.line.wake()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answer.status for answer in answers if isinstance(answer, ApiError)] == [503] * 5
        assert room.line.num_waiting == 0

    run(body)


def test_the_deadline() -> None:
    async def body(room: Room) -> None:
        start_s = time.monotonic()
        with pytest.raises(ApiError) as caught:
            await room.enter("a", wait_s=0.1)
        assert caught.value.status == 504 and 0.09 < time.monotonic() - start_s < 2
        await start(room, "b")
        await room.free()
        assert room.taken == ["b"]

    run(body)


def test_one_too_many_is_refused_unless_it_must_wait() -> None:
    async def body(room: Room) -> None:
        room.line = Line(2)
        await start(room, "a", "b")
        with pytest.raises(ApiError) as caught:
            await room.enter("c")
        assert caught.value.status == 429 and caught.value.headers["Retry-After"]
        must = asyncio.create_task(room.line.enter("k", (0,), lambda: None, deadline_s=1e12, must_wait=True))
        await settle()
        assert room.line.num_waiting == 3 and room.line.num_waiting_of(0) == 3
        must.cancel()

    run(body)
