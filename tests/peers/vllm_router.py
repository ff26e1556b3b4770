"""`vllm-router` in prefill/decode mode in front of two Baton servers: its answers are those of one Baton server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.peers.processes import PeerServer, free_ports
from tests.peers.questions import MODEL, Question
from tests.peers.rows import Row, compare, references
from tests.transfer.servers import EngineServer, role, servers

START_S = 60.0


@contextmanager
def vllm_router(command: Path, prefill_url: str, decode_url: str) -> Iterator[PeerServer]:
    """Start it with its default policy, which also asks servers for /render and /tokenize."""
    port, figures_port = free_ports(2)
    arguments = ["--vllm-pd-disaggregation", "--prefill", prefill_url, "--decode", decode_url]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(figures_port)]
    with PeerServer([str(command), *arguments], port) as router:
        yield router.ready(START_S)


def vllm_router_rows(command: Path, model: Path, questions: Sequence[Question], *flags: str) -> Iterator[Row]:
    """Rows of a pair in pull mode, and one for what is left on it afterwards.

    Args:
        command: the `vllm-router` program.
        model: as `baton serve` takes it.
        flags: of all Baton servers.
    """
    plain = ("--no-enable-prefix-caching", "--served-model-name", MODEL, *flags)
    roles = [role(name, *plain) for name in ("prefill", "decode")]
    with (
        servers((model, plain), *((model, options) for options in roles)) as (single, prefill, decode),
        ExitStack() as stack,
    ):
        router = stack.enter_context(vllm_router(command, prefill.url, decode.url))
        routed = stack.enter_context(httpx.Client(base_url=router.url))
        way = "vllm-router, pull"
        yield from compare(routed, questions, references(single.http, questions), "baton", way)
        yield _left_over(prefill, decode, way, 2 * len(questions))


def _left_over(prefill: EngineServer, decode: EngineServer, way: str, num_requests: int) -> Row:
    """Each request was handed over, nothing of it is kept on either side, and nothing went wrong inside."""
    num_handovers = decode.peer["num_transfers"]
    wrong = [] if num_handovers == num_requests else ["KV was not handed over each time"]
    try:
        for server in (prefill, decode):
            server.idle()
    except AssertionError:
        wrong.append("a pool is not empty")
    if any("Traceback" in server.stderr() for server in (prefill, decode)):
        wrong.append("a traceback in a log")
    note = "; ".join([f"{num_handovers} hand-overs of {num_requests} requests", *wrong])
    return Row(peer="baton", way=way, question="KV is handed over", ok=not wrong, note=note)
