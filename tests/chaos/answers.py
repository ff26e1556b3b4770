"""An answer as a client sees it, put together from a whole body or from the chunks of a stream, and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LOGPROB_TOLERANCE = 1e-3


@dataclass(slots=True)
class Choice:
    """One of n. logprobs: (token as the answer writes it, logprob)."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """All choices by index, and (prompt, completion) tokens where they were told."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, int] | None = None

    def add(self, body: dict[str, Any]) -> None:
        """A chunk of a stream, or a whole body."""
        for part in body["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            spoken = part.get("delta") or part.get("message") or {}
            choice.text += part.get("text") or spoken.get("content") or ""
            choice.token_ids += part.get("token_ids") or []
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            choice.logprobs += _logprobs(part.get("logprobs") or {})
        if usage := body.get("usage"):
            self.usage = usage["prompt_tokens"], usage["completion_tokens"]


def whole(body: dict[str, Any]) -> Answer:
    """The answer of a body that was not streamed."""
    answer = Answer()
    answer.add(body)
    return answer


def _logprobs(part: dict[str, Any]) -> list[tuple[str, float]]:
    if "content" in part:
        return [(entry["token"], entry["logprob"]) for entry in part["content"] or ()]
    tokens, values = part.get("tokens") or (), part.get("token_logprobs") or ()
    return [(token, 0.0 if value is None else value) for token, value in zip(tokens, values, strict=True)]


def difference(seen: Answer, right: Answer, *, complete: bool) -> str:
    """What is wrong with an answer, in words; "" for nothing.

    Args:
        complete: it is to be the right one; else only the beginning of it.
    """
    if complete and seen.choices.keys() != right.choices.keys():
        return f"choices {sorted(seen.choices)} instead of {sorted(right.choices)}"
    if complete and seen.usage is not None and seen.usage != right.usage:
        return f"usage {seen.usage} instead of {right.usage}"
    for index, choice in seen.choices.items():
        if index not in right.choices:
            return f"choice {index} that nobody asked for"
        if words := _difference(choice, right.choices[index], complete=complete):
            return f"choice {index}: {words}"
    return ""


def _difference(seen: Choice, right: Choice, *, complete: bool) -> str:
    for name in ("text", "token_ids"):
        mine, other = getattr(seen, name), getattr(right, name)
        if mine != (other if complete else other[: len(mine)]):
            at = _first_difference(mine, other)
            return f"{name} differs at {at}: {mine[at : at + 8]!r} instead of {other[at : at + 8]!r}"
    if seen.finish_reason != right.finish_reason and (complete or seen.finish_reason is not None):
        return f"finish_reason {seen.finish_reason} instead of {right.finish_reason}"
    return _logprob_difference(seen.logprobs, right.logprobs, complete=complete)


def _first_difference(mine: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = enumerate(zip(mine, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(mine), len(other)))


def _logprob_difference(seen: list[tuple[str, float]], right: list[tuple[str, float]], *, complete: bool) -> str:
    if len(seen) > len(right) or (complete and len(seen) < len(right)):
        return f"{len(seen)} logprobs instead of {len(right)}"
    for at, ((token, value), (right_token, right_value)) in enumerate(zip(seen, right, strict=False)):
        if token != right_token or abs(value - right_value) > LOGPROB_TOLERANCE:
            return f"logprob {at} is {token!r} {value:.4f} instead of {right_token!r} {right_value:.4f}"
    return ""
