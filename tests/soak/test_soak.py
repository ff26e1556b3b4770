"""The soak scripts in a short form: one round of everything, and a fuzzer for 20 seconds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.serving import Server, stub_server
from tests.server.harness import VOCAB, byte_tokenizer
from tests.soak.fuzz import find_schemathesis, fuzz, fuzz_server
from tests.soak.load import Sizes, beside_slow_readers, check_crowd, crowd, held, start
from tests.soak.openapi import document
from tests.soak.text_law import check_text_law
from tests.soak.tiny import tiny_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
SIZES = Sizes(clients=300, tokens=60, slow=20, never=5, slow_tokens=1500, probe_tokens=100)


@pytest.fixture(params=["stub", "tiny"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with start(request.param, tmp_path) as running:
        yield running


def test_crowds_and_slow_readers_leave_nothing(server: Server) -> None:
    """Memory is bounded loosely: two crowds are too few for a plateau. The script measures the 5 %."""
    for number in range(2):
        check_crowd(asyncio.run(crowd(server.url, SIZES, number)), SIZES)
    before = held(server)
    asyncio.run(beside_slow_readers(server, SIZES))
    check_crowd(asyncio.run(crowd(server.url, SIZES, 2)), SIZES)
    after = held(server)
    assert all(new < 1.5 * old for old, new in zip(before, after, strict=True)), (before, after)
    assert "Traceback" not in server.stderr()


def test_a_crowd_beyond_the_queue_is_refused_with_retry_after(tmp_path: Path) -> None:
    stub = {"tokenizer": str(byte_tokenizer(tmp_path)), "vocab_size": VOCAB, "max_num_seqs": 32, "step_s": 0.002}
    with stub_server(stub=stub, max_queue=32).ready() as server:
        kinds = asyncio.run(crowd(server.url, SIZES, 0))
        check_crowd(kinds, SIZES, limited=True)
        assert kinds["refused"] > 100 and kinds["complete"] >= 32, kinds
        held(server)


def test_text_law(tmp_path: Path) -> None:
    """Over a byte vocabulary, where random weights write broken UTF-8 by themselves."""
    with tiny_server(tmp_path, "--max-model-len", "2048", "--kv-cache-tokens", "32768").ready() as server:
        check_text_law(server, tmp_path, 40)


def test_the_document_names_every_field_of_the_api() -> None:
    schemas = document("MODEL")["components"]["schemas"]
    for name, fields in {"CompletionRequest": {"prompt", "stop", "echo"}, "ChatRequest": {"messages", "tools"}}.items():
        assert fields <= set(schemas[name]["properties"])


def test_fuzz_for_20_seconds(tmp_path: Path) -> None:
    schemathesis = find_schemathesis()
    if schemathesis is None:
        pytest.skip("schemathesis is not installed")
    with fuzz_server(tmp_path) as server:
        fuzz(server, tmp_path, seconds=20, schemathesis=schemathesis, seeds=[1])
