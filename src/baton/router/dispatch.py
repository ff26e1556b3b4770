"""Serves one request with as many attempts as it takes, and words what is left when none succeeds."""

from __future__ import annotations

import asyncio

from baton.obs.log import get_logger
from baton.router.attempt import Trip, Try
from baton.router.desk import Desk
from baton.router.legs import LegError
from baton.web.errors import ApiError

_log = get_logger(__name__)
_FIRST_BACKOFF_S = 0.02
_BACKOFF_FACTOR = 5


def backoff_s(number: int) -> float:
    """How long to wait before attempt `number` (from 2 on): 20 ms, 100 ms, 500 ms, ..."""
    return float(_FIRST_BACKOFF_S * _BACKOFF_FACTOR ** (number - 2))


async def dispatch(desk: Desk, trip: Trip) -> None:
    """Give the client its answer, or the reason why there is none.

    Raises:
        ClientGoneError: the client left; both engines know.
        ApiError: as an answer, when nothing was sent yet.
    """
    avoid: set[str] = set()
    number = 1
    while True:
        try:
            await Try(desk, trip, frozenset(avoid)).run()
            return
        except LegError as error:
            _log.info("request %s, attempt %d: %s", trip.record.request_id, number, error)
            avoid.add(error.worker_id)
            if not error.again or number >= desk.config.max_attempts or not trip.progress.can_go_on:
                await _give_up(trip, error)
                return
        except ApiError as error:
            if trip.progress.client.started:
                await trip.progress.client.fail(error)
                return
            raise
        number += 1
        await _rest(trip, backoff_s(number))


async def _rest(trip: Trip, seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cause = trip.interrupt.cause()
        if cause is None:
            raise
        raise cause from None


async def _give_up(trip: Trip, error: LegError) -> None:
    """In the worker's own words, where it has some."""
    if error.status and error.body:
        await trip.progress.client.fail(ApiError(error.status, str(error)), error.body, error.headers)
    else:
        message = f"the workers could not answer: {error}"
        await trip.progress.client.fail(ApiError(503, message, retry=True))
