"""Lengths of shared prefixes, against a plain search over all prompts."""

from __future__ import annotations

import random

from baton.router.prefix import Prefixes

PIECE = 64


def common(one: bytes, other: bytes) -> int:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return length // PIECE * PIECE


def test_it_finds_the_longest_prefix_of_each_holder() -> None:
    dice = random.Random(1)
    prefixes, kept = Prefixes(), []
    for _ in range(300):
        start = dice.choice(kept)[1][: dice.randrange(400)] if kept and dice.random() < 0.7 else b""
        prompt = start + bytes(dice.choices(b"ab", k=dice.randrange(300)))
        expected = {holder: common(prompt, other) for holder, other in kept}
        for holder, other in kept:
            expected[holder] = max(expected[holder], common(prompt, other))
        assert prefixes.matches(prompt) == {holder: length for holder, length in expected.items() if length}
        holder = dice.choice("xyz")
        prefixes.add(holder, prompt)
        kept.append((holder, prompt))


def test_less_than_a_piece_matches_nothing() -> None:
    prefixes = Prefixes()
    prefixes.add("x", b"a" * (PIECE - 1))
    assert len(prefixes) == 0 and prefixes.matches(b"a" * (PIECE - 1)) == {}


def test_the_oldest_are_forgotten_first_and_memory_is_bounded() -> None:
    prefixes = Prefixes(max_nodes=4)
    a, b, c = (letter * 2 * PIECE for letter in (b"a", b"b", b"c"))
    prefixes.add("x", a)
    prefixes.add("x", b)
    prefixes.add("x", a)  # seen again: b is the oldest now
    prefixes.add("x", c)
    assert len(prefixes) == 4
    assert [prefixes.matches(prompt) for prompt in (a, b, c)] == [{"x": 128}, {}, {"x": 128}]


def test_a_long_tail_goes_before_the_start_that_others_share() -> None:
    prefixes = Prefixes(max_nodes=4)
    shared = b"s" * 2 * PIECE
    prefixes.add("x", shared + b"1" * PIECE)
    prefixes.add("y", shared + b"2" * PIECE)
    prefixes.add("y", shared + b"3" * PIECE)
    assert prefixes.matches(shared + b"1" * PIECE) == {"x": 128, "y": 128}


def test_a_prompt_longer_than_the_memory_is_kept_from_its_start() -> None:
    prefixes = Prefixes(max_nodes=3)
    prefixes.add("x", bytes(range(256)) * 2)
    assert len(prefixes) == 3 and prefixes.matches(bytes(range(256)) * 2) == {"x": 3 * PIECE}
