"""The parts of the time to the first tokens: what each is, and that they add up."""

from __future__ import annotations

import random

import pytest

from baton.router.record import Attempt, RequestRecord
from baton.router.timeline import first_tokens, request_spans
from tests.router.showing import request


def milliseconds(record: RequestRecord) -> dict[str, float]:
    split = first_tokens(record)
    assert split is not None
    return {name: round(value * 1e3, 6) for name, value in split.known().items()}


def test_a_relayed_push() -> None:
    record = request(1000.0)
    assert milliseconds(record) == {"queue": 2, "retries": 0, "prefill": 30, "handover": 8, "first_decode": 5}
    assert record.first_token_s is not None
    # The client had token 1 when prefill was over: 32 ms = queue + prefill, not the sum of all parts.
    assert record.first_token_s - record.arrival_s == pytest.approx(0.002 + 0.030)


def test_a_failed_attempt_before_the_first_token_is_a_part() -> None:
    record = request(1000.0)
    failed = Attempt(transfer_id="a", mode="push", placed_s=1000.001, ended_s=1000.0015, outcome="no connection")
    record.attempts.insert(0, failed)
    assert milliseconds(record) == {"queue": 1, "retries": 1, "prefill": 30, "handover": 8, "first_decode": 5}


def test_a_continuation_does_not_change_what_the_first_token_took() -> None:
    record = request(1000.0)
    record.attempts[0].decoded_s = None
    record.attempts.append(Attempt(transfer_id="", mode="single", placed_s=1000.2, landed_s=1000.3, continues=3))
    assert milliseconds(record) == {"queue": 2, "retries": 0, "prefill": 30, "handover": 8}


def test_one_worker_prefills_until_its_first_token() -> None:
    record = request(1000.0)
    attempt = record.attempts[0]
    attempt.mode, attempt.prefill, attempt.prefilled_s, record.first_token_s = "single", "", None, 1000.040
    assert milliseconds(record) == {"queue": 2, "retries": 0, "prefill": 38, "first_decode": 5}
    attempt.landed_s = attempt.decoded_s = None  # pieces that nobody parsed
    assert milliseconds(record) == {"queue": 2, "retries": 0, "prefill": 38}


def test_a_first_token_that_overtakes_the_prefill_answer_makes_no_negative_part() -> None:
    record = request(1000.0)
    record.attempts[0].landed_s = 1000.030  # prefilled_s is .032, decoded_s is .045
    assert milliseconds(record) == {"queue": 2, "retries": 0, "prefill": 30, "handover": 0, "first_decode": 13}


def test_the_parts_add_up_whatever_the_moments() -> None:
    dice = random.Random(7)
    for _ in range(500):
        placed, *moments = (1000 + dice.random() for _ in range(4))
        record = request(1000.0)
        attempt = record.attempts[0]
        attempt.placed_s = placed
        attempt.prefilled_s, attempt.landed_s, attempt.decoded_s = moments
        record.first_token_s = max(placed, moments[0])
        split = first_tokens(record)
        assert split is not None and min(split.known().values()) >= 0
        assert sum(split.known().values()) == pytest.approx(max(placed, *moments) - 1000.0)


def test_what_has_no_parts() -> None:
    whole, unplaced = request(1000.0), request(1000.0)
    whole.stream = False
    unplaced.attempts, unplaced.first_token_s = [], None
    assert first_tokens(whole) is None and first_tokens(unplaced) is None


def spans(record: RequestRecord, now: float) -> list[tuple[str, str, float, float]]:
    return [
        (each.name, each.row, round(1e3 * (each.start_s - 1000), 3), round(1e3 * (each.end_s - 1000), 3))
        for each in request_spans(record, now)
    ]


def test_the_waterfall_has_no_gap() -> None:
    assert spans(request(1000.0), now=2000.0) == [
        ("queue", "router", 0, 2),
        ("prefill", "attempt 1", 2, 32),
        ("handover", "attempt 1", 32, 40),
        ("first_decode", "attempt 1", 40, 45),
        ("stream", "attempt 1", 45, 432),
    ]


def test_a_phase_that_broke_off_ends_with_its_attempt_and_one_that_runs_ends_now() -> None:
    record = request(1000.0)
    record.ended_s = None
    first = record.attempts[0]
    first.landed_s, first.decoded_s, first.ended_s, first.outcome = None, None, 1000.050, "worker lost"
    record.attempts.append(Attempt(transfer_id="b", mode="push", prefill="p", decode="d", placed_s=1000.060))
    assert spans(record, now=1000.1)[1:] == [
        ("prefill", "attempt 1", 2, 32),
        ("handover", "attempt 1", 32, 50),
        ("prefill", "attempt 2", 60, 100),
    ]


def test_an_answer_in_one_piece_says_what_it_hides() -> None:
    record = request(1000.0)
    record.stream = False
    record.attempts[0].landed_s = record.attempts[0].decoded_s = None
    assert spans(record, now=2000.0)[-1] == ("rest", "attempt 1", 32, 432)
    record.attempts[0].prefilled_s = None
    assert spans(record, now=2000.0)[-1] == ("whole", "attempt 1", 2, 432)


def test_a_request_in_the_queue_waits_until_now() -> None:
    record = request(1000.0)
    record.attempts, record.ended_s = [], None
    assert spans(record, now=1000.5) == [("queue", "router", 0, 500)]
