"""Makes the arithmetic questions that are shipped with the bench:

    python tests/bench/make_arithmetic.py

Twenty templates: 120 questions of one step (80 of them with small numbers, so that small models get some right), 35 of
two, 45 of three and four. No step leaves the whole numbers from 0 up. Answers show their steps, and end with
"#### NUMBER".
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from baton.bench.questions import EXAMPLES, QUESTIONS

NAMES = ("Ada", "Ben", "Chen", "Dina", "Emil", "Fatou", "Goran", "Hana", "Ivo", "Juno", "Kofi", "Lea", "Mina", "Nils")
THINGS = ("apples", "pencils", "stamps", "marbles", "books", "tickets", "shells", "cards", "bricks", "candles")

Draw = Callable[[int, int], int]
Made = tuple[str, list[str]]
"""A question, and the calculations that lead to its answer."""
Template = Callable[[str, str, Draw], Iterator[Made]]


def one_step(name: str, things: str, n: Draw) -> Iterator[Made]:
    a, b, k, m = n(2, 9), n(2, 9), n(2, 5), n(2, 5)
    yield from single(name, things, a, b, k, m)


def larger(name: str, things: str, n: Draw) -> Iterator[Made]:
    a, b, k, m = n(10, 60), n(10, 40), n(2, 9), n(6, 12)
    yield from single(name, things, a, b, k, m)


def single(name: str, things: str, a: int, b: int, k: int, m: int) -> Iterator[Made]:
    yield f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", [f"{a} + {b}"]
    yield f"{name} has {a + b} {things} and gives away {b}. How many are left?", [f"{a + b} - {b}"]
    yield f"A box holds {m} {things}. How many {things} are in {k} boxes?", [f"{k} * {m}"]
    yield f"{name} shares {k * m} {things} equally among {k} friends. How many does each get?", [f"{k * m} / {k}"]
    yield f"A train has {k} cars with {m} seats each. How many seats does it have?", [f"{k} * {m}"]
    yield f"{name} is {a} years old. How old will {name} be in {b} years?", [f"{a} + {b}"]
    yield f"A rope of {a + b} metres is cut, and {a} metres are used. How many metres remain?", [f"{a + b} - {a}"]
    yield f"{name} reads {m} pages a day. How many pages does {name} read in {k} days?", [f"{m} * {k}"]


def two_steps(name: str, things: str, n: Draw) -> Iterator[Made]:
    a, b, k, m = n(10, 60), n(2, 9), n(2, 9), n(3, 12)
    yield (
        f"{name} buys {k} packs of {m} {things} and already has {b}. How many {things} are that together?",
        [f"{k} * {m}", f"{k * m} + {b}"],
    )
    yield (
        f"{name} has {k * m + b} {things}, loses {b}, and puts the rest into {k} equal bags. How many are in each bag?",
        [f"{k * m + b} - {b}", f"{k * m} / {k}"],
    )
    yield (
        f"A ticket costs {m} dollars. {name} pays for {k} tickets with {k * m + a} dollars. How much change is due?",
        [f"{k} * {m}", f"{k * m + a} - {k * m}"],
    )
    yield (
        f"{name} walks {m} km every morning and {b} km every evening. How many km is that in {k} days?",
        [f"{m} + {b}", f"{m + b} * {k}"],
    )
    yield (
        f"A garden has {k} rows of {m} plants. {b} plants die. How many are left?",
        [f"{k} * {m}", f"{k * m} - {b}"],
    )
    yield (
        f"{name} has {a} {things}. A friend has {k} times as many. How many do they have together?",
        [f"{a} * {k}", f"{a * k} + {a}"],
    )
    yield (
        f"{a} people and then {b} more get on a bus, and {k} get off. How many are on the bus?",
        [f"{a} + {b}", f"{a + b} - {k}"],
    )


def three_steps(name: str, things: str, n: Draw) -> Iterator[Made]:
    a, b, k, m = n(10, 60), n(2, 9), n(2, 9), n(3, 12)
    total = k * m + b * a
    yield (
        f"{name} buys {k} {things} at {m} dollars each and {b} maps at {a} dollars each. What does it cost in all?",
        [f"{k} * {m}", f"{b} * {a}", f"{k * m} + {b * a}"],
    )
    yield (
        f"{name} earns {m} dollars an hour, works {k} hours, earns {b * 3} dollars more, and spends {b}. "
        "How many dollars are left?",
        [f"{m} * {k}", f"{m * k} + {b * 3}", f"{m * k + b * 3} - {b}"],
    )
    yield (
        f"Two shelves hold {a} {things} each and a third one holds {b}. {k} are taken away. How many are left?",
        [f"2 * {a}", f"{2 * a} + {b}", f"{2 * a + b} - {k}"],
    )
    yield (
        f"A baker makes {k} trays of {m} rolls and {b} trays of {a} rolls, and sells {total - k} of them. "
        "How many are left?",
        [f"{k} * {m}", f"{b} * {a}", f"{k * m} + {b * a}", f"{total} - {total - k}"],
    )
    yield (
        f"{name} fills {k} jars with {m} {things} each, loses {b} of them, and gets {a} new ones. How many are there?",
        [f"{k} * {m}", f"{k * m} - {b}", f"{k * m - b} + {a}"],
    )


def made(template: Template, count: int, rng: random.Random) -> list[Made]:
    """`count` draws of every template of a kind, no question twice."""
    draws: dict[str, list[str]] = {}
    wanted = count * len(list(template("A", "b", rng.randint)))
    while len(draws) < wanted:
        for question, steps in template(rng.choice(NAMES), rng.choice(THINGS), rng.randint):
            if len(draws) < wanted:
                draws.setdefault(question, steps)
    return list(draws.items())


def line(question: str, steps: list[str]) -> str:
    """As JSON, with worked steps."""
    values = [eval(step.replace("/", "//")) for step in steps]
    shown = [f"{step} = {value}." for step, value in zip(steps, values, strict=True)]
    return json.dumps({"question": question, "answer": " ".join(shown) + f"\n#### {values[-1]}"})


def files() -> dict[Path, str]:
    """What is shipped: 200 questions in random order, and eight examples of other draws, first five of one step."""
    rng = random.Random(0)
    kinds: list[tuple[Template, int]] = [(one_step, 10), (larger, 5), (two_steps, 5), (three_steps, 9)]
    questions = [line(*each) for template, count in kinds for each in made(template, count, rng)]
    rng.shuffle(questions)
    others = [line(*each) for template, _ in kinds for each in made(template, 1, random.Random(1000))]
    chosen = [others[index] for index in (0, 2, 9, 3, 6, 16, 18, 24)]
    return {QUESTIONS: "\n".join(questions) + "\n", EXAMPLES: "\n".join(chosen) + "\n"}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
