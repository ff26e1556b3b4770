"""Requests from files, and what is said of files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from baton.bench.datafiles import (
    choose,
    read_conversations,
    read_prompts,
    read_trace,
    trace_asks,
)
from baton.core.errors import ConfigError


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_a_trace_is_sorted_and_shares_its_prefixes(tmp_path: Path) -> None:
    line = {"input_tokens": 20, "output_tokens": 3, "prefix_id": "a"}
    path = written(
        tmp_path / "t.jsonl",
        {**line, "time_s": 2.0, "prefix_tokens": 12},
        {**line, "time_s": 1.0, "prefix_tokens": 8},
        {"time_s": 3.0, "input_tokens": 5, "output_tokens": 1},
    )
    lines = read_trace(path)
    assert [line.time_s for line in lines] == [1.0, 2.0, 3.0]
    first, second, third = trace_asks(lines, (100, 1000), np.random.default_rng(0))
    assert [len(ask.prompt) for ask in (first, second, third)] == [20, 20, 5]
    assert first.prompt[:8] == second.prompt[:8]
    assert first.prompt[8:] != second.prompt[8:]


def test_own_prompts(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hello"}]
    path = written(tmp_path / "p.jsonl", {"prompt": "a"}, {"messages": talk, "output_tokens": 9})
    first, second = read_prompts(path, 5)
    assert (first.prompt, first.output_tokens) == ("a", 5)
    assert (second.prompt, second.output_tokens) == (talk, 9)


@pytest.mark.parametrize("as_list", [True, False])
def test_conversations(tmp_path: Path, as_list: bool) -> None:
    """Those with two turns and a first one that says something; a JSON list and JSONL alike."""
    talks = [
        {"id": 1, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"from": "human", "value": "alone"}]},
        {"conversations": [{"from": "human", "value": "  "}, {"from": "gpt", "value": "a"}]},
    ]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(talks) if as_list else "\n".join(map(json.dumps, talks)))
    assert [(pair.prompt, pair.answer) for pair in read_conversations(path)] == [("q", "a")]


def test_choosing_repeats_only_when_all_were_taken(tmp_path: Path) -> None:
    found = choose(list(range(10)), 25, np.random.default_rng(0), path=tmp_path)
    assert sorted(found[:10]) == sorted(found[10:20]) == list(range(10))


def test_errors_name_the_line(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", {"time_s": 0, "input_tokens": 1, "output_tokens": 1}, {"time_s": 1})
    with pytest.raises(ConfigError, match=r"x\.jsonl:2: .*input_tokens"):
        read_trace(path)
    with pytest.raises(ConfigError, match=r"2: give either prompt or messages"):
        read_prompts(written(tmp_path / "p.jsonl", {"prompt": "a"}, {}), 1)
    with pytest.raises(ConfigError, match="cannot read"):
        read_trace(tmp_path / "missing")
    with pytest.raises(ConfigError, match="nothing to ask"):
        choose([], 1, np.random.default_rng(0), path=tmp_path)
