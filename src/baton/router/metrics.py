"""The router's own figures as metric families, all under `baton_router_`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from baton.obs.family import Family
from baton.router.figures import RouterFigures
from baton.router.panel import FleetPanel, WorkerPanel
from baton.router.worker import WorkerState

_BREAKER = ("closed", "half-open", "open")


def families(figures: RouterFigures, panel: FleetPanel, num_live: int) -> Iterator[Family]:
    """Everything that GET /metrics says about requests and workers.

    Args:
        num_live: requests that came and have not ended.
    """
    yield from _requests(figures)
    yield from _latencies(figures)
    yield _gauge("live_requests", "Requests that came and have not ended.", (), [((), num_live)])
    yield _gauge("queued_requests", "Of these, waiting for a worker.", (), [((), panel.num_queued)])
    yield from _workers(panel.workers)


def _requests(figures: RouterFigures) -> Iterator[Family]:
    yield _counter(
        "requests", "Requests that ended, by HTTP status and how they were served.", ("status", "mode"),
        list(figures.requests.items()),
    )  # fmt: skip
    yield _counter(
        "attempts", "Tries to serve a request, by outcome.", ("mode", "outcome"), list(figures.attempts.items())
    )
    for name, help_text, value in (
        ("retries", "Attempts after another one had failed, from the start.", figures.retries),
        ("continuations", "Attempts that went on behind tokens the client had.", figures.continuations),
        ("relayed", "Streams whose first token came from the prefill worker.", figures.relayed),
        ("prompt_tokens", "Prompt tokens of requests that ended.", figures.prompt_tokens),
        ("cached_tokens", "Of these, found in a prefix cache.", figures.cached_tokens),
        ("generation_tokens", "Output tokens of requests that ended.", figures.new_tokens),
    ):
        yield _counter(name, help_text, (), [((), value)])


def _latencies(figures: RouterFigures) -> Iterator[Family]:
    parts = [((part,), histogram) for part, histogram in figures.parts.items()]
    yield Family(
        name="baton_router_first_tokens_seconds",
        help_text="Arrival to the first decode step of streams, in parts that follow one another.",
        labels=("part",),
        histograms=parts,
    )
    for name, help_text, histogram in (
        ("time_to_first_token_seconds", "Arrival to the first token sent to the client.", figures.first_token),
        ("time_per_output_token_seconds", "Mean of a stream after its first token.", figures.per_token),
        ("request_seconds", "Arrival to end of requests that ended well.", figures.whole),
    ):
        yield Family(name=f"baton_router_{name}", help_text=help_text, histograms=[((), histogram)])


def _workers(workers: Sequence[WorkerPanel]) -> Iterator[Family]:
    states, breakers = [state.value for state in WorkerState], _BREAKER
    yield _gauge(
        "worker_state", "1 for the state that a worker is in.", ("worker", "role", "state"),
        [((each.worker_id, _role(each), state), each.state.value == state) for each in workers for state in states],
    )  # fmt: skip
    yield _gauge(
        "worker_breaker", "1 for the state that its circuit breaker is in.", ("worker", "state"),
        [((each.worker_id, state), each.breaker == state) for each in workers for state in breakers],
    )  # fmt: skip
    for name, help_text, values in (
        ("outstanding_requests", "Legs sent to it and not ended.", [each.num_requests for each in workers]),
        ("outstanding_tokens", "Tokens of these legs.", [each.num_tokens for each in workers]),
        ("inbound_tokens", "Prompt tokens whose KV these legs bring it.", [each.inbound_tokens for each in workers]),
        ("running", "Sequences in its running batch.", [each.gauges.num_running for each in workers]),
        ("waiting", "Sequences in its queue.", [each.gauges.num_waiting for each in workers]),
        ("used_blocks", "KV blocks in use.", [each.gauges.used_blocks for each in workers]),
    ):
        pairs = [((each.worker_id,), value) for each, value in zip(workers, values, strict=True)]
        yield _gauge(f"worker_{name}", help_text, ("worker",), pairs)


def _role(worker: WorkerPanel) -> str:
    return "" if worker.role is None else worker.role.value


_Values = Sequence[tuple[tuple[str, ...], float]]


def _gauge(name: str, help_text: str, labels: tuple[str, ...], values: _Values) -> Family:
    return Family(name=f"baton_router_{name}", help_text=help_text, labels=labels, values=values)


def _counter(name: str, help_text: str, labels: tuple[str, ...], values: _Values) -> Family:
    return Family(name=f"baton_router_{name}", help_text=help_text, labels=labels, values=values, counts=True)
