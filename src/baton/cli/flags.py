"""Turns the fields of a frozen dataclass into flags of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer


class Flag(NamedTuple):
    """How a field is called on the command line. env: variable that gives it too."""

    name: str
    help: str
    env: str | None = None


def with_flags(
    command: Callable[..., None],
    parameter: str,
    kind: type[Any],
    table: Mapping[str, Flag],
    make: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replace a parameter of a command by one flag for each field of `kind`, behind its other parameters.

    Args:
        table: by field, one entry for each. A field of type tuple[str, ...] becomes a flag that may be repeated.
        make: builds the parameter's value from the fields' values.
    """
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    flags = _parameters(kind, table)
    names = [flag.name for flag in flags]

    @wraps(command)
    def flat(*args: Any, **values: Any) -> None:
        chosen = {name: values.pop(name) for name in names}
        command(*args, **{parameter: make(chosen)}, **values)

    others = [p for p in parameters if p.name != parameter]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others[1:]]
    flat.__signature__ = inspect.Signature([others[0], *keyword_only, *flags])  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in [*others, *flags]} | {"return": None}
    return flat


def _parameters(kind: type[Any], table: Mapping[str, Flag]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    parameters = []
    for field in fields(kind):
        flag = table[field.name]
        several = hints[field.name] == tuple[str, ...]
        option = typer.Option(flag.name, help=flag.help, show_default=not several, envvar=flag.env)
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if several else field.default,
                annotation=Annotated[list[str] | None if several else hints[field.name], option],
            )
        )
    return parameters
