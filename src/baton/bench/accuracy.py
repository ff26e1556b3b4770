"""Asks a server questions, and scores what it says. What was not answered is no wrong answer: it is counted apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baton.bench.client import Client, NoAnswerError
from baton.bench.questions import STOP, Question, few_shot, said_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiz:
    """What is asked, and how."""

    questions: Sequence[Question]
    examples: Sequence[Question]
    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 42
    concurrency: int = 8

    def body(self, number: int, model: str) -> dict[str, Any]:
        """Of the request for one question."""
        return {
            "model": model,
            "prompt": few_shot(self.examples, self.questions[number]),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stop": list(STOP),
            "return_token_ids": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one question. token_ids: empty where the server does not tell them; error: "" when it went well."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """All replies of one run, in the order of the questions, and how long it took."""

    replies: Sequence[Reply]
    latency_s: float


async def ask_all(client: Client, quiz: Quiz, model: str) -> Graded:
    """Every question, at most `quiz.concurrency` at a time."""
    free, started_s = asyncio.Semaphore(quiz.concurrency), time.perf_counter()

    async def one(number: int) -> Reply:
        async with free:
            return await _ask(client, quiz.body(number, model))

    replies = await asyncio.gather(*(one(number) for number in range(len(quiz.questions))))
    return Graded(replies=replies, latency_s=time.perf_counter() - started_s)


async def _ask(client: Client, body: dict[str, Any]) -> Reply:
    try:
        answer = await client.ask("POST", "/v1/completions", body)
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        return Reply(
            text=choice["text"],
            token_ids=tuple(choice.get("token_ids") or ()),
            num_tokens=int(usage.get("completion_tokens") or 0),
        )
    except NoAnswerError as error:
        return Reply(error=str(error))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return Reply(error=f"no completion in the answer: {error!r}")


def score(quiz: Quiz, graded: Graded, model: str) -> dict[str, Any]:
    """The result file of a run. accuracy: right answers over answered questions; None when nothing was answered."""
    pairs = list(zip(quiz.questions, graded.replies, strict=True))
    answered = [(question, reply) for question, reply in pairs if not reply.error]
    right = sum(said_number(reply.text) == question.number for question, reply in answered)
    invalid = sum(said_number(reply.text) is None for _, reply in answered)
    num_tokens = sum(reply.num_tokens for _, reply in answered)
    return {
        "accuracy": right / len(answered) if answered else None,
        "invalid_rate": invalid / len(answered) if answered else None,
        "num_errors": len(pairs) - len(answered),
        "num_right": right,
        "num_questions": len(pairs),
        "num_shots": len(quiz.examples),
        "latency": graded.latency_s,
        "questions_per_second": len(answered) / graded.latency_s,
        "total_output_tokens": num_tokens,
        "tokens_per_second": num_tokens / graded.latency_s,
        "max_tokens": quiz.max_tokens,
        "temperature": quiz.temperature,
        "seed": quiz.seed,
        "model": model,
        "timestamp": time.strftime("%Y-%m-%d %H:%M:%S"),
        "replies": [_row(question, reply) for question, reply in pairs],
    }


def _row(question: Question, reply: Reply) -> dict[str, Any]:
    said = said_number(reply.text)
    return {
        "question": question.question,
        "wanted": question.number,
        "said": said,
        "right": not reply.error and said == question.number,
        "text": reply.text,
        "error": reply.error,
    }
