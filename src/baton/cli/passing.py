"""Turns a dataclass of options back into flags, for a process that is to be told the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any


def as_flags(options: Any, names: Mapping[str, str]) -> list[str]:
    """What `options` says beyond its defaults.

    Args:
        names: of the flags, by field; fields without one are left out. A flag of a field that is false by default
            takes no value; one that is true, or open, by default has a --no- form.
    """
    flags: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        default = None if field.default is MISSING else field.default
        name = names.get(field.name)
        if name is None or value == default:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            flags += _flag(name, each)
    return flags


def _flag(name: str, value: Any) -> list[str]:
    if value is True:
        return [name]
    if value is False:
        return ["--no-" + name.removeprefix("--")]
    return [name, str(value.value if isinstance(value, Enum) else value)]


def flag_names(kind: type[Any]) -> dict[str, str]:
    """The names that Typer makes from those of the fields."""
    return {field.name: "--" + field.name.replace("_", "-") for field in fields(kind)}
