"""Which requests are traced, for how long, and what an engine's late words add."""

from __future__ import annotations

from typing import Any

from baton.core.exchange import (
    Expect,
    Failed,
    Grant,
    Landed,
    Prefilled,
    Progress,
    Reserve,
    Settled,
    TransferRecord,
    Withdraw,
)
from baton.core.handoff import Handoff, PeerAddress, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.server.handoff_traces import HandoffTraces
from baton.wire.engine import Admitted, Moment, moment_of
from tests.server.scripted import NOW, output, peer_info

SOURCE = PeerAddress(host="p", port=1)


def request(name: str, *, takes: bool = False, n: int = 1) -> Request:
    handoff = Handoff(transfer_id=f"t-{name}", source=SOURCE if takes else None)
    return Request(request_id=name, prompt_token_ids=(1,) * 9, params=SamplingParams(n=n), handoff=handoff)


def started(*requests: Request, size: int = 8) -> HandoffTraces:
    traces = HandoffTraces(size)
    for each in requests:
        traces.start(each, peer_info(), arrival_s=NOW, traceparent=None)
    return traces


def moment(name: str, what: str, at: float) -> Moment:
    return Moment(transfer_id=f"t-{name}", what=what, time_s=NOW + at)


def spans(traces: HandoffTraces, name: str) -> list[tuple[str, float, float]]:
    document: Any = traces.document(f"t-{name}")
    found = [event for event in document["traceEvents"] if event["ph"] == "X" and event["name"] != "request"]
    return [(e["name"], e["ts"] / 1e6 - NOW, (e["ts"] + e["dur"]) / 1e6 - NOW) for e in found]


def test_a_record_that_comes_after_the_answer_is_still_shown() -> None:
    traces = started(request("a"))
    end = SequenceDelta(request_id="a", index=0, token_ids=(1,), finish_reason=FinishReason.LENGTH)
    traces.on_output(output(at=1, moments=(moment("a", "grant", 1), moment("a", "prefilled", 2))))
    traces.on_output(output(end, at=2))
    traces.finish("a", NOW + 2.5)
    record = TransferRecord(
        transfer_id="t-a",
        mode=TransferMode.PUSH,
        num_bytes=1,
        num_descriptors=1,
        post_s=0,
        wire_s=0,
        exposed_s=0,
        early_bytes=0,
        started_s=NOW + 1.5,
        ended_s=NOW + 3,
    )
    traces.on_output(output(at=4, transfers=(record,)))
    assert spans(traces, "a") == [("queue", 0, 1), ("prefill", 1, 2), ("wire", 1.5, 3)]


def test_a_taker_that_falls_back_prefills() -> None:
    traces = started(request("a", takes=True))
    traces.on_output(output(at=1, moments=(moment("a", "reserve", 1), moment("a", "failed", 3))))
    traces.on_output(output(at=4, admitted=(Admitted(request_id="a", time_s=NOW + 4),)))
    traces.on_output(output(SequenceDelta(request_id="a", index=0, token_ids=(1,)), at=5))
    assert spans(traces, "a") == [("queue", 0, 1), ("transfer", 1, 3), ("queue", 3, 4), ("prefill", 4, 5)]
    traces.finish("a", NOW + 7)  # the client is gone
    assert spans(traces, "a")[-1] == ("decode", 5, 7)


def test_a_request_ends_with_its_last_sequence() -> None:
    traces = started(request("a", n=2))
    for index in (0, 1):
        delta = SequenceDelta(
            request_id="a", index=index, token_ids=(1,), finish_reason=FinishReason.LENGTH, num_cached_tokens=0
        )
        traces.on_output(output(delta, at=1.0 + index, moments=(moment("a", "grant", 0.5),)))
    assert spans(traces, "a") == [("queue", 0, 0.5), ("prefill", 0.5, 1), ("decode", 1, 2)]


def test_only_the_latest_are_kept_and_plain_requests_never() -> None:
    traces = started(*(request(str(i)) for i in range(10)), size=4)
    plain = Request(request_id="plain", prompt_token_ids=(1,), params=SamplingParams())
    traces.start(plain, peer_info(), arrival_s=NOW, traceparent=None)
    assert [traces.document(f"t-{i}") is not None for i in range(10)] == [False] * 6 + [True] * 4
    for i in range(10):
        traces.finish(str(i), NOW)
    traces.finish("plain", NOW)


def test_a_trace_is_bounded() -> None:
    traces = started(request("a"))
    for at in range(1000):
        traces.on_output(output(at=at, moments=(moment("a", "grant", at), moment("a", "withdraw", at + 0.5))))
    document = traces.document("t-a")
    assert document is not None and len(document["traceEvents"]) < 600


def test_which_words_are_moments() -> None:
    """Names of the classes; what ends no part of a request is none."""
    said = [
        Grant(pin=1, transfer_id="t", block_ids=(), num_tokens=1, prompt_digest=b""),
        Progress(transfer_id="t", num_final_tokens=1),
        Prefilled(transfer_id="t", first_tokens=()),
        Withdraw(transfer_id="t", reason=""),
        Expect(transfer_id="t", source=SOURCE, mode=TransferMode.PUSH),
        Reserve(
            pin=1, transfer_id="t", source=SOURCE, block_ids=(), num_tokens=1, prompt_digest=b"", num_cached_tokens=0
        ),
        Landed(transfer_id="t", first_tokens=()),
        Failed(transfer_id="t", reason=""),
        Settled(pin=1),
    ]
    found = [moment_of(each, 5.0) for each in said]
    assert [each and each.what for each in found] == [
        *("grant", "progress", "prefilled", "withdraw"),
        *(None, "reserve", "landed", "failed", None),
    ]
    assert found[0] == Moment(transfer_id="t", what="grant", time_s=5.0)
