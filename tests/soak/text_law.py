"""The law of text over HTTP with a real model: a stream joined is the whole answer, both are the tokens' own text,
and nothing of a stop string leaks. Prompts in many scripts, and outputs forced to be broken UTF-8.

python -m tests.soak.text_law MODEL [--prompts 200]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from baton.text.tokenizer import Tokenizer, load_tokenizer
from tests.cluster.serving import Server
from tests.soak.client import Connection, Outcome
from tests.soak.quiet import wait_idle
from tests.soak.tiny import baton_serve

_SCRIPTS = [
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea ",  # joined emoji
    "e\u0301a\u0300o\u0302\u0323 n\u0303 \u0915\u094d\u0937 Z\u0351\u036b\u0343 combining: ",
    "\u4ece\u524d\u6709\u4e00\u5ea7\u5c71\u3002\u65e5\u672c\u8a9e\u306e\u6587\u3001\ud55c\uad6d\uc5b4: ",  # CJK
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0e2a\u0e27\u0e31 \u202e right to left \u200b\ufeff: ",
    "The quick brown fox jumps over ",
]
_TOKENS = 12
_AT_ONCE = 16


def byte_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens that are no valid UTF-8 by themselves, and valid ones outside ASCII."""
    assert tokenizer.pieces is not None
    broken, foreign = [], []
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.pieces.piece(token_id)
        if isinstance(piece, bytes) and piece and not piece.isascii():
            (foreign if _valid(piece) else broken).append(token_id)
    return broken, foreign


def _valid(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _num_common(one: str, other: str) -> int:
    """Characters that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class Law:
    """Asks and checks.

    Args:
        tokenizer: the oracle: an answer's text is what decoding its tokens behind the prompt's, all at once, adds to
            the prompt's own text. A character that the prompt leaves unfinished belongs to the answer.
    """

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self._url = url
        self._tokenizer = tokenizer
        self._broken, self._foreign = byte_tokens(tokenizer)
        self._http = httpx.AsyncClient(base_url=url, timeout=300)
        self.seen: Counter[str] = Counter()

    async def check(self, number: int) -> None:
        """One prompt: plain and with a stop string from the middle of its answer, whole and streamed.

        Raises:
            AssertionError: a law is broken.
        """
        draw = random.Random(number)
        body = self._body(number, draw)
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        whole, streamed = await self._both(path, body)
        for text, ids in (whole, streamed):
            assert text == self._text(body, ids), (number, text, ids)
        self.seen["prompts"] += 1
        self.seen["answers with U+FFFD"] += "\ufffd" in whole[0]
        self._compare(number, whole, streamed)
        if len(whole[0]) < 3:
            return
        start = draw.randrange(len(whole[0]))
        stop = whole[0][start : start + draw.randint(1, 6)]
        whole, streamed = await self._both(path, body | {"stop": [stop, "<never in any text>"]})
        for text, ids in (whole, streamed):
            self._check_stopped(number, stop, text, self._text(body, ids))
        self._compare(number, whole, streamed)

    def _body(self, number: int, draw: random.Random) -> dict[str, Any]:
        text = _SCRIPTS[number % len(_SCRIPTS)] + "".join(draw.choices(_SCRIPTS[(number * 3 + 1) % 5], k=8))
        body: dict[str, Any] = {"max_tokens": _TOKENS, "temperature": 1.0, "seed": number, "return_token_ids": True}
        match number % 4:
            case 1:  # so few pieces of characters that hardly any becomes whole
                body |= {"allowed_token_ids": draw.sample(self._broken, 5), "ignore_eos": True, "temperature": 2.0}
            case 2:  # broken and whole characters mixed
                mixed = [*draw.choices(self._foreign or [0], k=100), *draw.choices(self._broken, k=100)]
                body |= {"logit_bias": {str(i): 100 for i in mixed}, "ignore_eos": True}
            case 3:  # a prompt that ends in half a character
                return body | {"prompt": [*self._tokenizer.encode(text), *draw.choices(self._broken, k=3)]}
        return body | ({"prompt": text} if number % 8 < 6 else {"messages": [{"role": "user", "content": text}]})

    async def _both(self, path: str, body: dict[str, Any]) -> list[tuple[str, list[int]]]:
        response = await self._http.post(path, json=body)
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        connection = Connection(self._url)
        await connection.ask(path, body | {"stream": True})
        outcome: Outcome = await connection.read_all()
        assert outcome.status == 200 and outcome.done and not outcome.error and not outcome.broken, outcome
        assert outcome.finish_reason == choice["finish_reason"] or outcome.token_ids != choice["token_ids"]
        return [(text, choice["token_ids"]), (outcome.text, outcome.token_ids)]

    def _text(self, body: dict[str, Any], ids: list[int]) -> str:
        prompt = body.get("prompt", "")
        before = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        shown = self._tokenizer.decode(before, skip_special_tokens=True)
        both = self._tokenizer.decode([*before, *ids], skip_special_tokens=True)
        return both[_num_common(shown, both) :]

    def _compare(self, number: int, whole: tuple[str, list[int]], streamed: tuple[str, list[int]]) -> None:
        """Seeded twins have the same tokens, but for sums in another order where the batch was another one."""
        self.seen["twins"] += 1
        if whole[1] == streamed[1]:
            assert whole[0] == streamed[0], number
            self.seen["twins with the same tokens"] += 1

    def _check_stopped(self, number: int, stop: str, text: str, full: str) -> None:
        at = full.find(stop)
        assert stop not in text, (number, stop, text)
        assert text == (full if at < 0 else full[:at]), (number, stop, text, full)
        self.seen["stopped answers"] += at >= 0


async def run(url: str, model: Path, num_prompts: int) -> Counter[str]:
    """Check that many prompts, a few at a time; returns what was seen."""
    law = Law(url, load_tokenizer(model))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated(number: int) -> None:
        async with gate:
            await law.check(number)

    await asyncio.gather(*(gated(number) for number in range(num_prompts)))
    return law.seen


def check_text_law(server: Server, model: Path, num_prompts: int) -> Counter[str]:
    """Against a server that is up; afterwards it holds nothing."""
    seen = asyncio.run(run(server.url, model, num_prompts))
    wait_idle(server)
    assert seen["prompts"] == num_prompts
    assert seen["twins with the same tokens"] >= 0.9 * seen["twins"], seen
    assert seen["answers with U+FFFD"] >= num_prompts // 4, seen
    assert seen["stopped answers"] >= num_prompts, seen
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=200)
    given = parser.parse_args()
    flags = ("--max-model-len", "1024", "--kv-cache-tokens", "32768")
    with baton_serve(str(given.model), *flags).ready() as server:
        started_s = time.monotonic()
        print(dict(check_text_law(server, given.model, given.prompts)), f"in {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
