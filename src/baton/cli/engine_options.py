"""Flags of every command that has an engine, made from the fields of EngineOptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from baton.engine.options import EngineOptions

_HELP = {
    "model": "A Hugging Face folder or a .gguf file.",
    "tokenizer": "Take the tokenizer from this folder or .gguf file.",
    "dtype": "auto, float32, bfloat16 or float16.",
    "device": "auto, cpu, cuda or cuda:N.",
    "load_format": "auto, safetensors, gguf or dummy (seeded random weights).",
    "block_size": "Tokens of a KV block; by default 16 on CPU, 64 on a GPU.",
    "kv_cache_tokens": "KV cache size in tokens; by default from the memory at hand.",
    "max_model_len": "Prompt plus output tokens of a sequence; by default the model's.",
    "max_num_seqs": "Sequences that run at once.",
    "max_num_batched_tokens": "Token budget of a step.",
    "enable_prefix_caching": "Reuse KV blocks of earlier requests with the same prefix.",
    "async_scheduling": "Plan the next step while one runs; by default on a GPU only.",
    "debug_poison": "Debugging: fill KV blocks with a pattern before they change hands; slow.",
    "seed": "Seed of sampling and of dummy weights.",
}


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's first parameter, an EngineOptions, by one flag for each of its fields.

    The field `model` becomes the command's argument. The command's own options come before the engine's.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    engine = _parameters()
    names = {parameter.name for parameter in engine}

    @wraps(command)
    def flat(**values: Any) -> None:
        options = EngineOptions(**{name: values.pop(name) for name in names})
        command(options, **values)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [engine[0], *own, *engine[1:]]]
    flat.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in keyword_only} | {"return": None}
    return flat


def _parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(EngineOptions)
    parameters = []
    for field in fields(EngineOptions):
        if field.default is MISSING:
            flag: Any = typer.Argument(help=_HELP[field.name], show_default=False)
            default: Any = inspect.Parameter.empty
        else:
            flag, default = typer.Option(help=_HELP[field.name]), field.default
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[hints[field.name], flag],
            )
        )
    return parameters
