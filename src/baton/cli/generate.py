"""`baton generate MODEL --prompt ...`: complete prompts and print them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.cli.engine_options import with_engine_options
from baton.core.errors import ConfigError
from baton.core.sampling import SamplingParams
from baton.engine.options import EngineOptions
from baton.obs.log import show_logs


@with_engine_options
def generate(
    options: EngineOptions,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with one prompt a line.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Output tokens a prompt.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many most likely tokens; 0 keeps all.")] = 0,
    n: Annotated[int, typer.Option(help="Completions a prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="A stop string; may be given several times.")] = None,
) -> None:
    """Complete prompts, batched, and print the texts in their order."""
    prompts = _prompts(prompt, prompt_file)
    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, n=n, stop=tuple(stop or ())
    )
    show_logs()
    from baton.engine.llm import LLM

    with LLM.from_options(options) as llm:
        outputs = llm.generate(prompts, params, show_progress=len(prompts) > 1)
    several = len(prompts) * n > 1
    for text, output in zip(prompts, outputs, strict=True):
        for completion in output.outputs:
            if several:
                typer.echo(f"--- {text!r} [{completion.index}] ({completion.finish_reason})")
            typer.echo(completion.text)


def _prompts(prompt: list[str] | None, prompt_file: Path | None) -> list[str]:
    prompts = list(prompt or [])
    if prompt_file is not None:
        try:
            lines = prompt_file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"cannot read --prompt-file {prompt_file}: {reason}") from error
        prompts += [line for line in lines if line]
    if not prompts:
        raise ConfigError("no prompt: give --prompt TEXT or --prompt-file FILE")
    return prompts
