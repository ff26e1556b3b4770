"""`baton up`: its options reach the engines as they were given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import typer
import typer.testing

from baton.cli.engine_options import with_engine_options
from baton.cli.main import app
from baton.cli.passing import as_flags, flag_names
from baton.engine.options import EngineOptions

CHANGED: dict[str, Any] = {
    "tokenizer": "a folder",
    "dtype": "float32",
    "device": "cpu",
    "load_format": "dummy",
    "block_size": 32,
    "kv_cache_tokens": 4096,
    "max_model_len": 256,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 77,
    "enable_prefix_caching": False,
    "async_scheduling": True,
    "debug_poison": True,
    "seed": 5,
}


def parsed(*arguments: str) -> EngineOptions:
    """What a command with these flags gets."""
    taken: list[EngineOptions] = []

    def command(options: EngineOptions) -> None:
        taken.append(options)

    one = typer.Typer()
    one.command()(with_engine_options(command))
    done = typer.testing.CliRunner().invoke(one, list(arguments))
    assert done.exit_code == 0, done.output
    return taken[0]


def flags(options: EngineOptions) -> list[str]:
    names = {name: flag for name, flag in flag_names(EngineOptions).items() if name != "model"}
    return as_flags(options, names)


def test_engine_options_are_passed_on_whole() -> None:
    assert {field.name for field in dataclasses.fields(EngineOptions)} == {"model", *CHANGED}
    for given in ({}, CHANGED, {"async_scheduling": False}):
        options = EngineOptions(model="M", **given)
        assert parsed("M", *flags(options)) == options


def test_defaults_are_left_to_the_engines() -> None:
    assert flags(EngineOptions(model="M")) == []


@pytest.mark.parametrize("name", ["--prefill", "--decode", "--mode", "--port", "--max-model-len", "--log-dir"])
def test_help_names_the_options(name: str) -> None:
    done = typer.testing.CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 0 and name in done.output
