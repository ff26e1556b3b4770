"""Requests of a load, drawn by seed."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL_LEN = 512
_MOST_PROMPT, _MOST_NEW = 300, 200
_PREFIX, _NUM_PREFIXES = 64, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request as it is sent when nothing is streamed. session: value of x-session-id."""

    number: int
    path: str
    body: dict[str, Any]
    session: str | None = None


def draw_asks(seed: int, count: int) -> list[Ask]:
    """Requests of all sorts; every sampled one has a seed, so that it has one right answer."""
    draw = random.Random(seed)
    prefixes = [_letters(draw, _PREFIX) for _ in range(_NUM_PREFIXES)]
    return [_ask(draw, number, prefixes) for number in range(count)]


def _ask(draw: random.Random, number: int, prefixes: list[str]) -> Ask:
    length = draw.choice((1, 2, 15, 16, 17, draw.randrange(18, 100), draw.randrange(100, _MOST_PROMPT)))
    text = _letters(draw, length)
    if length > _PREFIX and draw.random() < 0.5:
        text = draw.choice(prefixes) + text[_PREFIX:]
    long = draw.randrange(40, _MOST_NEW)
    body: dict[str, Any] = {"max_tokens": draw.choice((1, 2, draw.randrange(3, 40), long, long, long))}
    chat = draw.random() < 0.25
    if chat:
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = list(text.encode()) if draw.random() < 0.5 else text
    body |= _sampling(draw, number) | _limits(draw) | _extras(draw, chat=chat)
    session = f"session-{draw.randrange(8)}" if draw.random() < 0.25 else None
    return Ask(number=number, path=CHAT if chat else COMPLETIONS, body=body, session=session)


def _letters(draw: random.Random, length: int) -> str:
    return "".join(draw.choices(string.ascii_letters + "  ", k=length))


def _sampling(draw: random.Random, number: int) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {"temperature": 0}
    found: dict[str, Any] = {"temperature": draw.choice((0.5, 1.0)), "seed": number, "top_p": draw.choice((0.9, 1.0))}
    if draw.random() < 0.2:
        found["n"] = 3
    return found


def _limits(draw: random.Random) -> dict[str, Any]:
    """What ends an answer, and what steers it."""
    found: dict[str, Any] = {}
    if draw.random() < 0.8:
        found["ignore_eos"] = True
    if draw.random() < 0.2:
        found["stop"] = draw.sample(string.ascii_letters, 3)
    if draw.random() < 0.1:
        found |= {"presence_penalty": 0.5, "repetition_penalty": 1.2}
    elif draw.random() < 0.05:
        found["guided_regex"] = "[a-z ]{20,60}"
    return found


def _extras(draw: random.Random, *, chat: bool) -> dict[str, Any]:
    """What else the answer says."""
    found: dict[str, Any] = {}
    if draw.random() < 0.6:
        found["return_token_ids"] = True
    if draw.random() < 0.2:
        found |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    elif not chat and draw.random() < 0.08:
        found["echo"] = True
    return found
