"""What a check has found: one row a way of asking and question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from tests.peers.questions import Answer, Question, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """peer, way: what stood before what. note: what is wrong, or how much was compared."""

    peer: str
    way: str
    question: str
    ok: bool
    note: str = ""


def references(http: httpx.Client, questions: Iterable[Question]) -> dict[str, Answer]:
    """The answers of one server, by name of question."""
    return {question.name: ask(http, question, stream=False) for question in questions}


def compare(
    http: httpx.Client, questions: Sequence[Question], expected: dict[str, Answer], peer: str, way: str
) -> Iterator[Row]:
    """Ask each question twice, whole and streamed. An answer that is not to be had is a row that is not ok."""
    for question in questions:
        for stream in (False, True):
            name = f"{question.name}, {'streamed' if stream else 'whole'}"
            try:
                answer = ask(http, question, stream=stream)
            except (AssertionError, httpx.HTTPError, KeyError, ValueError) as error:
                yield Row(peer=peer, way=way, question=name, ok=False, note=f"{type(error).__name__}: {error}")
                continue
            wanted = expected[question.name]
            note = f"{answer.prompt_tokens} + {answer.completion_tokens} tokens"
            if answer != wanted:
                note = f"{answer} instead of {wanted}"
            yield Row(peer=peer, way=way, question=name, ok=answer == wanted, note=note)
