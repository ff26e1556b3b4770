"""Whether two servers give the same answers, token by token. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.bench.accuracy import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Question `number` is answered in two ways. place: of the first token (or character) that differs."""

    number: int
    place: int
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Two runs of the same questions.

    Attributes:
        num_compared: answered by both.
        num_errors: not answered by one of them or both.
        by_tokens: token ids were compared; else only texts, because a server does not tell token ids.
    """

    num_compared: int
    num_errors: int
    by_tokens: bool
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether every question was answered, and in the same way."""
        return not self.differences and not self.num_errors


def compare_replies(first: Sequence[Reply], second: Sequence[Reply]) -> Parity:
    """Replies of two servers (or of two runs) to the same questions, in the same order."""
    pairs = list(zip(first, second, strict=True))
    both = [(number, pair) for number, pair in enumerate(pairs) if not (pair[0].error or pair[1].error)]
    by_tokens = all(reply.token_ids or not reply.num_tokens for _, pair in both for reply in pair)
    differences = []
    for number, (ours, theirs) in both:
        left, right = (ours.token_ids, theirs.token_ids) if by_tokens else (ours.text, theirs.text)
        if left != right:
            place = first_difference(left, right)
            differences.append(Difference(number=number, place=place, first=ours.text, second=theirs.text))
    return Parity(
        num_compared=len(both),
        num_errors=len(pairs) - len(both),
        by_tokens=by_tokens,
        differences=tuple(differences),
    )


def first_difference(left: Sequence[object], right: Sequence[object]) -> int:
    """Where two sequences part; the end of the shorter one when it begins the longer one."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
