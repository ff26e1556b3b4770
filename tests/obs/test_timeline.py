"""Intervals of a sequence, as vLLM defines its phases."""

from __future__ import annotations

import pytest

from baton.obs.timeline import Timeline


def test_intervals_lie_between_their_moments() -> None:
    line = Timeline(
        arrival_s=10.0, admitted_s=10.5, first_token_s=11.5, last_token_s=13.5, finished_s=13.75, num_tokens=5
    )
    assert (line.queue, line.first_token, line.prefill, line.decode) == (0.5, 1.5, 1.0, 2.0)
    assert (line.inference, line.whole) == (3.0, 3.75)
    assert line.per_token == 0.5  # 2 s for the four tokens after the first


@pytest.mark.parametrize("name", ["queue", "first_token", "prefill", "decode", "inference", "whole", "per_token"])
def test_what_has_not_happened_has_no_interval(name: str) -> None:
    assert getattr(Timeline(arrival_s=10.0), name) is None


def test_one_token_has_no_mean_time_of_further_tokens() -> None:
    assert Timeline(arrival_s=0.0, first_token_s=1.0, last_token_s=1.0, num_tokens=1).per_token is None


def test_clocks_that_disagree_never_give_a_negative_interval() -> None:
    assert Timeline(arrival_s=10.0, admitted_s=9.999).queue == 0.0
