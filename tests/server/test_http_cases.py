"""72 odd requests and the status that vLLM 0.33 answers (max_model_len 2048); every 4xx in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import Server

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "http_cases.jsonl").read_text().splitlines()
]
ARGUED = {
    "use_beam_search": (400, "use_beam_search"),  # docs/api.md: a search that is not done must not be promised
}
"""Case -> (status, param) where a different answer serves the client better; docs/api.md says why."""
PARAMS = {
    "prompt exactly max_model_len": "prompt",
    "prompt too long": "prompt",
    "stream too long": "prompt",
    "content image part": "messages.0.content.0",
    "content null": "messages.0.content",
    "empty prompt list": "prompt",
    "frequency_penalty -3": "frequency_penalty",
    "invalid JSON": "body",
    "min_p 2": "min_p",
    "n 2 greedy": "n",
    "not utf8": "body",
    "presence_penalty 3": "presence_penalty",
    "prompt token id out of vocab": "prompt",
    "repetition_penalty 0": "repetition_penalty",
    "stop empty string": "stop",
}
"""Where the name of the offending field differs from vLLM's, which often names none or the wrong one."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_case(server: Server, case: dict[str, Any]) -> None:
    content: bytes | None = None
    if "json" in case:
        content = json.dumps(case["json"]).encode()
    elif "raw_body_latin1" in case:
        content = case["raw_body_latin1"].encode("latin-1")
    headers = {"content-type": case["content_type"]} if "content_type" in case else {}
    with server.http() as http:
        response = http.request(case["method"], case["path"], content=content, headers=headers)
    status, param = ARGUED.get(case["case"], (case["vllm_status"], None))
    assert response.status_code == status, response.text
    if status >= 400:
        wanted = param or PARAMS.get(case["case"]) or (case.get("param") or "").removeprefix("body.") or None
        check_error(response, wanted)


def check_error(response: httpx.Response, param: str | None) -> None:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == response.status_code
    assert body["error"]["param"] == param, body
    assert body["error"]["message"] and "\n" not in body["error"]["message"]
    assert response.headers["x-request-id"]
