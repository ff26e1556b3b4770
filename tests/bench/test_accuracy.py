"""Questions, scores, and whether two servers say the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from baton.bench.accuracy import Graded, Quiz, Reply, score
from baton.bench.parity import compare_replies, first_difference
from baton.bench.questions import EXAMPLES, QUESTIONS, Question, few_shot, read_questions, said_number
from baton.core.errors import ConfigError
from tests.bench.conftest import StartStub
from tests.bench.make_arithmetic import files

STEP = re.compile(r"([-+*/ 0-9]+) = (\d+)\.")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("path", "count"), [(QUESTIONS, 200), (EXAMPLES, 8)])
def test_the_shipped_questions_are_right(path: Path, count: int) -> None:
    """Every step is worked out again; the last one is the answer, a whole number from 0 up."""
    assert path.read_text() == files()[path]
    questions = read_questions(path)
    assert len({question.question for question in questions}) == count
    for question in questions:
        steps = STEP.findall(question.answer)
        assert steps
        for left, value in steps:
            assert eval(left.strip()) == int(value)
        assert question.number == steps[-1][1]


def test_examples_are_no_questions() -> None:
    assert not {q.question for q in read_questions(EXAMPLES)} & {q.question for q in read_questions(QUESTIONS)}


def test_the_prompt() -> None:
    shown = few_shot([Question("A?", "1+1 = 2.\n#### 2")], Question("B?", "#### 3"))
    assert shown == "Question: A?\nAnswer: 1+1 = 2.\n#### 2\n\nQuestion: B?\nAnswer:"


@pytest.mark.parametrize(
    ("text", "number"),
    [("so 3*4 = 12.\n#### 1,234", "1234"), ("none", None), ("-7", "7"), ("3.50", "50"), ("", None)],
)
def test_the_number_in_an_answer(text: str, number: str | None) -> None:
    """The last run of digits without commas, as harnesses for GSM8K take it; signs and decimals are not looked at."""
    assert said_number(text) == number


def test_errors_are_not_wrong_answers() -> None:
    questions = [Question("q", "#### 1")] * 4
    replies = [Reply(text="1"), Reply(text="2"), Reply(text="no"), Reply(error="HTTP 500")]
    found = score(Quiz(questions=questions, examples=()), Graded(replies=replies, latency_s=2.0), "m")
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["invalid_rate"] == pytest.approx(1 / 3)
    assert (found["num_errors"], found["num_questions"]) == (1, 4)
    nothing = score(Quiz(questions=questions[:1], examples=()), Graded(replies=replies[3:], latency_s=1.0), "m")
    assert nothing["accuracy"] is None


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "a", "answer": "12"}\n')
    with pytest.raises(ConfigError, match="question 1 does not end with ####"):
        read_questions(path)


def test_parity_is_by_token() -> None:
    """The same text of other tokens is another answer."""
    same = Reply(text="ab", token_ids=(1, 2), num_tokens=2)
    other = Reply(text="ab", token_ids=(1, 3), num_tokens=2)
    longer = Reply(text="abc", token_ids=(1, 2, 4), num_tokens=3)
    found = compare_replies([same, same, same, same], [same, other, longer, Reply(error="x")])
    assert [(each.number, each.place) for each in found.differences] == [(1, 1), (2, 2)]
    assert (found.num_compared, found.num_errors, found.by_tokens, found.same) == (3, 1, True, False)
    assert compare_replies([same], [same]).same
    texts = compare_replies([Reply(text="a", num_tokens=1)], [Reply(text="b", num_tokens=1)])
    assert (texts.by_tokens, len(texts.differences)) == (False, 1)
    assert first_difference("abc", "ab") == 2


def test_accuracy_of_a_server(start_stub: StartStub, tmp_path: Path) -> None:
    """The stub says 1000 plus the length of the prompt: right for the question that is made so."""
    data = tmp_path / "data.jsonl"
    asked = [few_shot((), Question("how much?", "")), few_shot((), Question("and this?", ""))]
    lines = [
        {"question": "how much?", "answer": f"#### {1000 + len(asked[0])}"},
        {"question": "and this?", "answer": "#### 1"},
        {"question": "refuse this", "answer": "#### 1"},
    ]
    data.write_text("\n".join(map(json.dumps, lines)))
    url, parted = start_stub(), start_stub("--answer", "It is 1,xyz")
    common = ("accuracy", url, "--data", str(data), "--shots", "0")
    done = bench(*common, "--repeat", "2", "--output-dir", str(tmp_path))
    assert done.returncode == 1, done.stderr  # one request failed
    assert "accuracy 0.5000 (1 of 3 right, 1 request errors" in done.stdout
    assert "run 1 against run 0: 2 of 2 answers are the same (token by token)" in done.stdout
    found = json.loads((tmp_path / "accuracy_run1.json").read_text())
    assert (found["num_right"], found["num_errors"], found["num_shots"]) == (1, 1, 0)
    same = bench(*common, "--questions", "2", "--parity", start_stub())
    assert (same.returncode, "2 of 2 answers are the same" in same.stdout) == (0, True), same.stdout
    differs = bench(*common, "--questions", "2", "--parity", parted)
    assert differs.returncode == 1
    assert "0 of 2 answers are the same" in differs.stdout
    assert "question 0 differs at 8" in differs.stdout
