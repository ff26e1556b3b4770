"""Requests for comparing answers: greedy, of set lengths, as text, as token ids and as chats."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.harness import events_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL = "model"
NEW_TOKENS = 24
REQUEST_S = 120.0
TEXT = (
    "The lighthouse keeper counted the ships that passed before noon and wrote their names in a book. Some carried "
    "timber from the north, some carried salt, and one old steamer carried nothing but letters. In winter the harbour "
    "froze from the shore outward, so that every morning the pilot walked a little further before he reached his boat. "
    "His daughter learned the signals from the window: two flags for fog, three for a ship in need of water, and a "
    "lantern at the top of the mast when somebody on board was ill. On market days the square below the church filled "
    "with carts. Farmers sold apples, honey and rope; a man from the hills sold clocks that ran backward, and nobody "
    "ever asked him why. When the first railway came, the station was built where the fish sheds had been, and the "
    "trains brought newspapers that were only one day old. The keeper read them aloud in the evening, slowly, as if "
    "each sentence were a rope that had to hold. He liked best the reports of the weather in other towns. It pleased "
    "him that the storm which broke his window on Tuesday had been a gentle rain two hundred miles to the west. Years "
    "later a bridge was built across the narrow part of the bay, and the ships became fewer, but the book was kept, "
    "and visitors turned its pages in the small museum beside the tower. The last entry names a boat with a red sail, "
    "seen at dawn, bound for an island which is on no map that the museum owns. Children ask about it every summer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request body without `stream`. name: for a table."""

    name: str
    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What has to be equal between two servers of one model."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


_GREEDY = {"model": MODEL, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}


def as_text(num_words: int) -> Question:
    """The first words of a text, to be gone on with."""
    prompt = " ".join(TEXT.split()[:num_words])
    return Question(name=f"text of {num_words} words", path=COMPLETIONS, body={"prompt": prompt, **_GREEDY})


def as_ids(num_tokens: int) -> Question:
    """Seeded token ids, all below 256 and above the special ones of small vocabularies."""
    rng = random.Random(num_tokens)
    prompt = [rng.randrange(32, 256) for _ in range(num_tokens)]
    return Question(name=f"{num_tokens} ids", path=COMPLETIONS, body={"prompt": prompt, **_GREEDY})


def as_chat(num_words: int) -> Question:
    """A question about the first words of a text."""
    told = " ".join(TEXT.split()[:num_words])
    messages = [{"role": "user", "content": f"{told}\n\nWhat is this about?"}]
    return Question(name=f"chat of {num_words} words", path=CHAT, body={"messages": messages, **_GREEDY})


TEN = (
    *(as_text(num_words) for num_words in (14, 90, 270)),
    *(as_ids(num_tokens) for num_tokens in (16, 32, 33, 400)),
    *(as_chat(num_words) for num_words in (5, 100, 250)),
)
"""Prompts of 16 to 400 tokens; the ids are exactly one block of 16, two, two and a token, and many."""


def ask(http: httpx.Client, question: Question, *, stream: bool) -> Answer:
    """One answer, whole or put together from its stream.

    Raises:
        AssertionError: another status than 200, or a broken stream.
    """
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
    reply = http.post(question.path, json={**question.body, **options}, timeout=REQUEST_S)
    assert reply.status_code == 200, f"{question.name}: {reply.status_code} {reply.text[:300]}"
    return _together(events_of(reply.content)) if stream else _together([reply.json()])


def _together(events: list[dict[str, Any]]) -> Answer:
    assert not any("error" in event for event in events), events[-1]
    choices = [choice for event in events for choice in event["choices"]]
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    usage = events[-1]["usage"]
    return Answer(
        text="".join(map(_text, choices)),
        finish_reason=ends[-1] if len(ends) == 1 else f"{len(ends)} endings",
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


def _text(choice: dict[str, Any]) -> str:
    said = choice.get("message") or choice.get("delta") or choice
    return said.get("text") or said.get("content") or ""
