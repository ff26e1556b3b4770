"""Questions with a number as answer, few-shot prompts of them, and the number in what a model says. Pure but for files.

The format is GSM8K's: JSONL of {"question", "answer"}, where the answer ends with "#### NUMBER". Prompt, stop strings
and extraction are those of the harnesses in use for it, so that scores can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.bench.datafiles import read_lines
from baton.core.errors import ConfigError

STOP = ("Question", "Assistant:", "<|separator|>")
_DATA = Path(__file__).parent / "data"
QUESTIONS, EXAMPLES = _DATA / "arithmetic.jsonl", _DATA / "arithmetic_examples.jsonl"
"""200 self-made questions of one to three steps, and worked ones to show before them."""
_DIGITS = re.compile(r"\d+")


class Question(msgspec.Struct, frozen=True):
    """One line of the file."""

    question: str
    answer: str

    @property
    def number(self) -> str:
        """The right answer: what stands behind "####", without commas."""
        return self.answer.rpartition("####")[2].strip().replace(",", "")


def read_questions(path: Path) -> list[Question]:
    """The questions of a file.

    Raises:
        ConfigError: it cannot be read, has none, or an answer has no "#### NUMBER" at its end.
    """
    found = list(read_lines(path, Question))
    for number, line in enumerate(found, 1):
        if "####" not in line.answer or not line.number:
            raise ConfigError(f"{path}: the answer of question {number} does not end with #### and a number")
    if not found:
        raise ConfigError(f"{path} has no questions")
    return found


def few_shot(examples: Sequence[Question], question: Question) -> str:
    """The prompt: worked examples, then the question."""
    shown = "".join(f"Question: {each.question}\nAnswer: {each.answer}\n\n" for each in examples)
    return f"{shown}Question: {question.question}\nAnswer:"


def said_number(text: str) -> str | None:
    """The last run of digits, commas dropped; None without any. Signs and decimals are not looked at."""
    found = _DIGITS.findall(text.replace(",", ""))
    return found[-1] if found else None
