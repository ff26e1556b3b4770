"""Timelines of the latest hand-off requests of one engine.

What the engine says comes by `on_output` (subscribe it with `EngineClient.on_output`). One thread: the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from baton.core.exchange import TransferRecord
from baton.core.request import Request, SequenceDelta
from baton.obs import chrome_trace, handoff_trace
from baton.obs.chrome_trace import Document, Span
from baton.wire.engine import Output, PeerInfo

MAX_TRACES = 512
_MAX_MOMENTS = 512  # of a request that is preempted again and again


@dataclass(slots=True, kw_only=True)
class _Trace:
    """One request. live: indices of the sequences that have not ended."""

    request: Request
    transfer_id: str
    trace_id: str
    peer: PeerInfo
    arrival_s: float
    live: set[int]
    moments: list[tuple[str, float]] = field(default_factory=list)
    record: TransferRecord | None = None
    num_tokens: int = 0

    def add(self, what: str, time_s: float) -> None:
        if len(self.moments) < _MAX_MOMENTS or what == handoff_trace.FINISH:
            self.moments.append((what, time_s))

    def delta(self, delta: SequenceDelta, time_s: float) -> None:
        if delta.token_ids and not self.num_tokens:
            self.add("first token", time_s)
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self.live.discard(delta.index)
            if not self.live:
                self.add(handoff_trace.FINISH, time_s)

    def document(self) -> Document:
        handoff = self.request.handoff
        assert handoff is not None
        names = {"trace_id": self.trace_id, "transfer_id": self.transfer_id}
        facts = {
            **names,
            "request_id": self.request.request_id,
            "side": "giver" if handoff.gives else "taker",
            "prompt_tokens": len(self.request.prompt_token_ids),
            "output_tokens": self.num_tokens,
        }
        end_s = max((time_s for _, time_s in self.moments), default=self.arrival_s)
        whole = Span(name="request", start_s=self.arrival_s, end_s=end_s, row="request", facts=facts)
        spans = [whole, *handoff_trace.phases(self.arrival_s, self.moments), *handoff_trace.chunks(self.moments)]
        wire = None if self.record is None else handoff_trace.wire(self.record)
        return chrome_trace.document(
            spans if wire is None else [*spans, wire],
            process=self.peer.engine_id,
            process_name=f"{self.peer.role.value} {self.peer.engine_id}",
            label=self.transfer_id,
            facts=names,
        )


class HandoffTraces:
    """Traces of the latest requests, at most `size`; of requests with one transfer_id the last."""

    def __init__(self, size: int = MAX_TRACES) -> None:
        self._size = size
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._live: dict[str, _Trace] = {}

    def start(self, request: Request, peer: PeerInfo | None, *, arrival_s: float, traceparent: str | None) -> None:
        """A request is submitted. Those without a hand-off are not traced.

        Args:
            peer: what this engine is to others.
            arrival_s: seconds since the epoch.
            traceparent: the header of this name.
        """
        handoff = request.handoff
        if handoff is None or peer is None:
            return
        trace = _Trace(
            request=request,
            transfer_id=handoff.transfer_id,
            trace_id=handoff_trace.trace_id(traceparent, handoff.transfer_id),
            peer=peer,
            arrival_s=arrival_s,
            live=set(range(request.params.n)),
        )
        self._live[request.request_id] = self._traces[handoff.transfer_id] = trace
        self._traces.move_to_end(handoff.transfer_id)
        if len(self._traces) > self._size:
            self._traces.popitem(last=False)

    def finish(self, request_id: str, now: float) -> None:
        """Nothing more is sent to the client (seconds since the epoch)."""
        trace = self._live.pop(request_id, None)
        if trace is not None and trace.live:
            trace.live.clear()
            trace.add(handoff_trace.FINISH, now)

    def on_output(self, output: Output) -> None:
        """Take what one step of the engine brought."""
        for moment in output.moments:
            trace = self._traces.get(moment.transfer_id)
            if trace is not None:
                trace.add(moment.what, moment.time_s)
        for record in output.transfers:
            trace = self._traces.get(record.transfer_id)
            if trace is not None:
                trace.record = record
        if not self._live:
            return
        for admitted in output.admitted:
            trace = self._live.get(admitted.request_id)
            if trace is not None:
                trace.add("admitted", admitted.time_s)
        for delta in output.deltas:
            trace = self._live.get(delta.request_id)
            if trace is not None:
                trace.delta(delta, output.time_s)

    def document(self, transfer_id: str) -> Document | None:
        """The trace in Chrome's format, as far as it has come; None if it is not known (any more)."""
        trace = self._traces.get(transfer_id)
        return None if trace is None else trace.document()
