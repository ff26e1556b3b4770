"""Models, tokenizer and probes."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from baton.text.tokenizer import load_tokenizer
from tests.server.harness import END, START, Server, run_server
from tests.server.test_http_cases import check_error

pytestmark = pytest.mark.slow


def test_models(server: Server) -> None:
    body = httpx.get(server.url + "/v1/models").json()
    assert body["object"] == "list" and [card["id"] for card in body["data"]] == ["MODEL", "alias"]
    card = body["data"][1]
    assert card["object"] == "model" and card["max_model_len"] == 2048 and card["root"] == "stub"
    assert httpx.get(server.url + "/v1/models/alias").json() == card
    missing = httpx.get(server.url + "/v1/models/org/other")
    assert missing.status_code == 404
    check_error(missing, "model")


def test_tokenize_and_back(server: Server, tokenizer_folder: Path) -> None:
    text = "Grüße 🌍"
    answer = server.post("/tokenize", model="MODEL", prompt=text, return_token_strs=True).json()
    assert answer["tokens"] == load_tokenizer(tokenizer_folder).encode(text)
    assert answer["count"] == len(text.encode()) == len(answer["tokens"]) and answer["max_model_len"] == 2048
    assert answer["token_strs"][:2] == ["G", "r"] and answer["token_strs"][2] == "bytes:\\xc3"
    assert server.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}
    assert server.post("/detokenize", tokens=[START, END]).json() == {"prompt": "<start><end>"}


def test_long_text_is_tokenized_like_a_short_one(server: Server, tokenizer_folder: Path) -> None:
    text = "Grüße 🌍 " * 3000
    tokenizer = load_tokenizer(tokenizer_folder)
    assert server.post("/tokenize", prompt=text).json()["tokens"] == tokenizer.encode(text)


@pytest.mark.parametrize("verb", ["encode", "decode"])
def test_other_threads_run_while_a_long_text_is_tokenized(tokenizer_folder: Path, verb: str) -> None:
    """The library's plain `encode` and `decode` hold the GIL throughout: the longest pause would be the whole time."""
    tokenizer = load_tokenizer(tokenizer_folder)
    ticks: list[float] = []
    long = "hello world " * 200_000 if verb == "encode" else [70] * 2_000_000
    worker = threading.Thread(target=getattr(tokenizer, verb), args=(long,))
    start_s = time.perf_counter()
    worker.start()
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    whole_s = time.perf_counter() - start_s
    assert max(b - a for a, b in pairwise([start_s, *ticks])) < whole_s / 2


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, 999999]}, "tokens.1"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens.1"),
    ],
)
def test_refused_by_name(server: Server, path: str, body: dict[str, object], param: str) -> None:
    response = server.post(path, **body)
    assert response.status_code == 400
    check_error(response, param)


def test_tokenizer_info(server: Server) -> None:
    info = httpx.get(server.url + "/tokenizer_info").json()
    assert info["eos_token"] == "<end>" and info["bos_token"] == "<start>"
    assert info["eos_token_id"] == END and info["bos_token_id"] == START
    assert "assistant" in info["chat_template"]


def test_probes(server: Server) -> None:
    for path in ("/health", "/live", "/ready", "/ping"):
        response = httpx.get(server.url + path)
        assert (response.status_code, response.content) == (200, b""), path
    assert httpx.post(server.url + "/ping").status_code == 200
    assert set(httpx.get(server.url + "/version").json()) == {"version"}
    assert httpx.get(server.url + "/load").json() == {"server_load": 0}
    assert httpx.head(server.url + "/metrics").status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/chat/completions", 405), ("GET", "/nope", 404)])
def test_wrong_routes_answer_in_the_same_shape(server: Server, method: str, path: str, status: int) -> None:
    response = httpx.request(method, server.url + path)
    assert response.status_code == status
    check_error(response, None)


def test_without_a_tokenizer_there_are_ids_only() -> None:
    with run_server(None) as server:
        body = {"prompt": [1, 2], "max_tokens": 2, "seed": 1, "return_token_ids": True, "logprobs": 0, "echo": True}
        choice = server.complete(**body)["choices"][0]
        assert choice["text"] == "" and len(choice["token_ids"]) == 2
        assert choice["logprobs"]["tokens"][:2] == ["token_id:1", "token_id:2"]
        for path, refused, param in (
            ("/v1/completions", {"prompt": "x"}, "prompt"),
            ("/v1/completions", {"prompt": [1], "stop": "x"}, "stop"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "prompt"),
            ("/tokenize", {"prompt": "x"}, "prompt"),
            ("/detokenize", {"tokens": [1]}, "prompt"),
        ):
            response = server.post(path, **refused)
            assert response.status_code == 400
            check_error(response, param)
