"""A fleet and requests as the page shows them, made up; and the page's routes on a real server."""

from __future__ import annotations

from dataclasses import replace

from starlette.applications import Starlette
from starlette.types import ASGIApp

from baton.core.handoff import Role, TransferMode
from baton.router.http import Http
from baton.router.page import FleetPage
from baton.router.panel import FleetPanel, WorkerPanel
from baton.router.record import Attempt, Journal, RequestRecord
from baton.router.worker import WorkerFacts, WorkerGauges, WorkerKind, WorkerState
from baton.web.errors import ApiError, on_error
from baton.web.guard import Guard

P0, P1, D0, D1 = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3, 4))


def worker(worker_id: str, role: Role, state: WorkerState = WorkerState.READY, **changes: object) -> WorkerPanel:
    facts = WorkerFacts(
        kind=WorkerKind.BATON,
        incarnation="e" + worker_id[-6:],
        role=role,
        transfer_modes=frozenset(TransferMode),
        models=("tiny",),
        fingerprint="0" * 32,
        block_tokens=16,
        num_blocks=1024,
        max_num_seqs=64,
        max_model_len=4096,
    )
    gauges = WorkerGauges(num_running=3, num_waiting=1, used_blocks=256)
    panel = WorkerPanel(worker_id=worker_id, url=worker_id, state=state, role=role, facts=facts, gauges=gauges)
    return replace(panel, num_requests=4, num_tokens=1234, **changes)  # type: ignore[arg-type]


def request(
    arrival_s: float,
    request_id: str = "r",
    *,
    prefill: str = P0,
    decode: str = D0,
    num_new_tokens: int = 21,
    transfer_id: str = "t",
) -> RequestRecord:
    """A relayed push: 2 ms of queue, 30 of prefill, 8 of hand-over, 5 of the first decode step; 21 tokens, 400 ms."""
    attempt = Attempt(
        transfer_id=transfer_id,
        mode="push",
        prefill=prefill,
        decode=decode,
        placed_s=arrival_s + 0.002,
        prefilled_s=arrival_s + 0.032,
        landed_s=arrival_s + 0.040,
        decoded_s=arrival_s + 0.045,
        ended_s=arrival_s + 0.432,
        outcome="done",
    )
    return RequestRecord(
        request_id=request_id,
        path="/v1/completions",
        model="tiny",
        stream=True,
        arrival_s=arrival_s,
        attempts=[attempt],
        status=200,
        first_token_s=arrival_s + 0.032,
        relayed=True,
        ended_s=arrival_s + 0.432,
        num_prompt_tokens=100,
        num_cached_tokens=25,
        num_new_tokens=num_new_tokens,
    )


class Shown:
    """A journal and a fleet that a test changes while the page shows them."""

    def __init__(self, workers: tuple[WorkerPanel, ...] = ()) -> None:
        self.journal = Journal()
        self.panel = FleetPanel(workers=workers, mode="push")
        self.page = FleetPage(self.journal, lambda: self.panel, Http())
        self.paths: list[str] = []

    def add(self, record: RequestRecord) -> RequestRecord:
        self.journal.start(record)
        if record.ended_s is not None:
            self.journal.finish(record)
        return record

    def app(self, api_keys: tuple[str, ...] = ()) -> ASGIApp:
        app = Starlette(routes=self.page.routes, exception_handlers={ApiError: on_error})
        guarded = Guard(app, api_keys)

        async def noting(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
            if scope["type"] == "http":
                self.paths.append(scope["path"])
            await guarded(scope, receive, send)

        return noting
