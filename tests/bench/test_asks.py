"""Random prompts: lengths by both conventions, shared prefixes, seeds."""

from __future__ import annotations

import numpy as np
import pytest

from baton.bench.asks import Lengths, RandomTokens
from baton.bench.kinds import RangeRule
from baton.core.errors import ConfigError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_around_is_vllms_convention() -> None:
    """floor(L (1 - r)) to ceil(L (1 + r)), both included; the mean is L."""
    lengths = Lengths(tokens=101, ratio=0.2)
    assert lengths.bounds == (80, 122)
    drawn = lengths.draw(20000, rng())
    assert (min(drawn), max(drawn)) == (80, 122)
    assert np.mean(drawn) == pytest.approx(101, rel=0.01)
    assert set(Lengths(tokens=64).draw(100, rng())) == {64}


def test_below_is_sa_benchs_convention() -> None:
    """r L to L; with r = 0.8 the mean is 0.9 L."""
    lengths = Lengths(tokens=1000, ratio=0.8, rule=RangeRule.BELOW)
    assert lengths.bounds == (800, 1000)
    assert np.mean(lengths.draw(20000, rng())) == pytest.approx(900, rel=0.01)


def test_no_length_is_zero() -> None:
    assert Lengths(tokens=1, ratio=0.9).bounds[0] == 1
    assert Lengths(tokens=5, ratio=0.0, rule=RangeRule.BELOW).bounds == (1, 5)


def test_prompts_have_their_lengths_and_ids() -> None:
    data = RandomTokens(inputs=Lengths(tokens=50), outputs=Lengths(tokens=7), low_id=5, high_id=9)
    asks = data.make(30, rng())
    assert {(len(ask.prompt), ask.input_tokens, ask.output_tokens) for ask in asks} == {(50, 50, 7)}
    assert {token for ask in asks for token in ask.prompt} == {5, 6, 7, 8}


def test_shared_prefixes_come_before_the_rest() -> None:
    data = RandomTokens(inputs=Lengths(tokens=16), outputs=Lengths(tokens=1), prefix_tokens=32, num_prefixes=3)
    asks = data.make(100, rng())
    assert {len(ask.prompt) for ask in asks} == {48}
    assert len({tuple(ask.prompt[:32]) for ask in asks}) == 3
    assert len({tuple(ask.prompt[32:]) for ask in asks}) == 100


def test_seeds() -> None:
    data = RandomTokens(inputs=Lengths(tokens=16, ratio=0.5), outputs=Lengths(tokens=4, ratio=0.5))
    assert data.make(10, rng(1)) == data.make(10, rng(1))
    assert data.make(10, rng(1)) != data.make(10, rng(2))


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": 0},
        {"tokens": 5, "ratio": 1.0},
        {"tokens": 5, "ratio": -0.1},
        {"tokens": 5, "ratio": 1.1, "rule": RangeRule.BELOW},
    ],
)
def test_bad_lengths(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Lengths(**bad)  # type: ignore[arg-type]
