"""What the network and clients may do to a running pair: hand-offs go on, and nothing is held afterwards."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.serving import until
from tests.transfer.servers import GIVE, EngineServer, Pair, server_pair

pytestmark = pytest.mark.torch

FLAGS = ("--handoff-lease-s", "2", "--handoff-timeout-s", "4", "--no-enable-prefix-caching")
HTTP = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
ZMTP = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + b"\0" * 48  # a valid greeting of ZMTP 3.0, then nothing
INT64 = 2**63 - 1
MALFORMED: list[tuple[str, Any]] = [
    ("remote_host", ""),
    ("remote_host", "a b"),
    ("remote_host", "x" * 300),
    ("remote_host", 7),
    ("remote_port", 0),
    ("remote_port", -1),
    ("remote_port", 70000),
    ("remote_port", "80"),
    ("remote_block_ids", [-1]),
    ("remote_block_ids", [[1], 2]),
    ("remote_block_ids", [1e30]),
    ("remote_block_ids", [2**64]),
    ("remote_engine_id", ["x"]),
    ("transfer_id", "\n"),
    ("transfer_id", "x" * 1000),
    ("tp_size", 0),
    ("tp_size", INT64),
    ("do_remote_decode", True),
    ("do_remote_prefill", "yes"),
    ("transfer_mode", "teleport"),
]


@pytest.fixture(scope="module", params=["push", "pull"])
def pair(request: pytest.FixtureRequest, text_model: Path) -> Iterator[Pair]:
    with server_pair(text_model, request.param, *FLAGS) as found:
        yield found


@pytest.fixture(autouse=True)
def unharmed(pair: Pair) -> Iterator[None]:
    """After each test: the same processes, a good hand-off, and all blocks free."""
    before = engines(pair)
    yield
    fallbacks = pair.decode.peer["num_fallbacks"]
    asked = body()
    assert tokens_of(pair.ask(**asked)) == tokens_of(pair.decode.post(asked))
    assert pair.decode.peer["num_fallbacks"] == fallbacks
    pair.idle()
    assert engines(pair) == before


def engines(pair: Pair) -> list[Any]:
    return [(server.engine(), server.peer["engine_id"]) for server in (pair.prefill, pair.decode)]


_RNG = random.Random(2)


def body() -> dict[str, Any]:
    """A prompt that nobody has seen, of three blocks and a bit."""
    prompt = [_RNG.randrange(256) for _ in range(52)]
    return {"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def tokens_of(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def connect(server: EngineServer) -> socket.socket:
    """To its control endpoint."""
    peer = server.peer
    return socket.create_connection((peer["host"], peer["port"]), timeout=10)


def test_bytes_that_are_no_frames(pair: Pair) -> None:
    """On the control endpoints of both: each counts every connection that is none, and hand-offs go on meanwhile."""
    noise = [HTTP, b"\0" * 300, b"\xff" * 64, _RNG.randbytes(4096), HTTP * 500, b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3"]
    for server in (pair.prefill, pair.decode):
        before = server.peer["num_malformed"]
        for data in noise:
            with connect(server) as connection:
                connection.sendall(data)
                assert tokens_of(pair.ask(**body()))
        until(lambda server=server, before=before: server.peer["num_malformed"] >= before + len(noise) - 1)


def test_half_open_connections_and_a_port_scan(pair: Pair) -> None:
    """A hundred connections that say nothing, or only a greeting, and three hundred that go at once."""
    with ExitStack() as stack:
        for number in range(100):
            connection = stack.enter_context(connect(pair.prefill))
            if number % 2:
                connection.sendall(ZMTP)
        for _ in range(300):
            connect(pair.prefill).close()
        assert tokens_of(pair.ask(**body()))
        assert pair.prefill.peer["num_links"] == pair.decode.peer["num_links"] == 1


def taking(pair: Pair, **changes: Any) -> tuple[dict[str, Any], Future[httpx.Response]]:
    """A decode leg that is not what a good proxy sends."""
    asked = body()
    return asked, pair.take({**pair.source(f"odd-{_RNG.getrandbits(60)}"), **changes}, **asked)


def test_malformed_fields_are_refused_by_name(pair: Pair) -> None:
    for field, value in MALFORMED:
        answer = taking(pair, **{field: value})[1].result()
        assert answer.status_code == 400, (field, value, answer.text)
        assert answer.json()["error"]["param"].startswith("kv_transfer_params."), (field, value)


def test_peers_that_are_none(pair: Pair) -> None:
    """Names that do not resolve, ports where nobody or somebody else listens, the wrong engine, itself, and block ids
    that nobody has: the request is served here, or refused where that is a mistake of configuration."""
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        closed.bind(("127.0.0.1", 0))
        web = int(pair.prefill.url.rpartition(":")[2])
        recomputed: list[dict[str, Any]] = [
            {"remote_host": "no-such-host.invalid"},
            {"remote_host": "256.256.256.256"},
            {"remote_host": "::::"},
            {"remote_host": "%00"},
            {"remote_port": closed.getsockname()[1]},
            {"remote_port": silent.getsockname()[1]},
            {"remote_port": web},
            {"remote_engine_id": "0" * 32},
            {"remote_engine_id": pair.decode.peer["engine_id"]},
        ]
        taken = [taking(pair, **changes) for changes in recomputed]
        for asked, answer in taken:
            assert tokens_of(answer.result(30)) == tokens_of(pair.decode.post(asked))
    own = pair.decode.peer
    itself = {"remote_host": own["host"], "remote_port": own["port"], "remote_engine_id": own["engine_id"]}
    answer = taking(pair, **itself)[1].result()
    assert answer.status_code == 503 and "itself" in answer.json()["error"]["message"], answer.text


def test_block_ids_of_a_ticket_are_not_believed(pair: Pair) -> None:
    """What P keeps for the transfer is what counts."""
    for ids in ([[INT64]], [[0] * 1000], []):
        asked = body()
        ticket = pair.prefill.post({**asked, "kv_transfer_params": GIVE}).json()["kv_transfer_params"]
        fallbacks = pair.decode.peer["num_fallbacks"]
        answer = pair.decode.post({**asked, "kv_transfer_params": {**ticket, "remote_block_ids": ids}})
        assert tokens_of(answer) == tokens_of(pair.decode.post(asked))
        assert pair.decode.peer["num_fallbacks"] == fallbacks


def test_a_prefill_that_never_comes(pair: Pair) -> None:
    """A transfer_id that P does not know: after a lease P says so, and the prompt is computed here."""
    asked, answer = taking(pair, transfer_id="never-given")
    assert tokens_of(answer.result(30)) == tokens_of(pair.decode.post(asked))
    until(lambda: "gone" in pair.decode.peer["failures"])


def test_the_transfer_of_another_prompt(pair: Pair) -> None:
    """A longer prompt: P refuses, both count it. The prompt whose transfer it was is lost to it, and is computed."""
    asked, longer = body(), body()
    longer["prompt"] = longer["prompt"] * 2
    ticket = pair.prefill.post({**asked, "kv_transfer_params": GIVE}).json()["kv_transfer_params"]
    for each in (longer, asked):
        answer = pair.decode.post({**each, "kv_transfer_params": ticket})
        assert tokens_of(answer) == tokens_of(pair.decode.post(each))
    until(lambda: "giver failed" in pair.decode.peer["failures"] and "prompt differs" in pair.prefill.peer["failures"])
    told = "another prompt: it has 104 tokens, the giver's has 52"
    until(lambda: told in pair.decode.stderr())


def test_the_transfer_of_another_prompt_of_the_same_length(pair: Pair) -> None:
    """Its KV is not taken for that of this prompt."""
    refused = pair.prefill.peer["failures"].get("prompt differs", 0)
    asked, other = body(), body()
    ticket = pair.prefill.post({**other, "kv_transfer_params": GIVE}).json()["kv_transfer_params"]
    answer = pair.decode.post({**asked, "kv_transfer_params": ticket})
    assert tokens_of(answer) == tokens_of(pair.decode.post(asked))
    until(lambda: pair.prefill.peer["failures"].get("prompt differs", 0) == refused + 1)
    told = "the taker means another prompt: it has 52 tokens, the giver's has 52"
    until(lambda: told in pair.decode.stderr())
    until(lambda: f"gave up hand-off {ticket['transfer_id']}: {told}" in pair.prefill.stderr())


def test_an_old_ticket_and_an_id_that_is_in_use(pair: Pair) -> None:
    """A ticket is good once: a replay is computed here. An id in use is refused by name, on both sides."""
    asked = body()
    ticket = pair.prefill.post({**asked, "kv_transfer_params": GIVE}).json()["kv_transfer_params"]
    for _ in range(3):
        answer = pair.decode.post({**asked, "kv_transfer_params": ticket})
        assert tokens_of(answer) == tokens_of(pair.decode.post(asked))
    used = pair.source("used")
    first = pair.take(used, **asked)
    until(lambda: pair.decode.peer["num_waiting"] == 1)
    twice = pair.decode.post({**asked, "kv_transfer_params": used})
    assert twice.status_code == 400 and twice.json()["error"]["param"] == "kv_transfer_params.transfer_id"
    pair.give("used", **asked)
    assert tokens_of(first.result(30)) == tokens_of(pair.decode.post(asked))
    params = {**GIVE, "transfer_id": "kept"}
    assert pair.prefill.post({**asked, "kv_transfer_params": params}).status_code == 200
    twice = pair.prefill.post({**asked, "kv_transfer_params": params})
    assert twice.status_code == 400 and twice.json()["error"]["param"] == "kv_transfer_params.transfer_id"


def test_prefills_that_nobody_fetches(pair: Pair) -> None:
    """Their lease ends, and their blocks come free."""
    expired = pair.prefill.peer["num_expired"]
    given = [pair.give(f"alone-{_RNG.getrandbits(60)}", **body()) for _ in range(20)]
    assert all(answer.result(30).status_code == 200 for answer in given)
    until(lambda: pair.prefill.peer["num_leased"] == 20)
    pair.idle()
    assert pair.prefill.peer["num_expired"] == expired + 20
    until(lambda: "its lease of 2 s ended, and nobody had taken it" in pair.prefill.stderr())
