"""`baton chat MODEL`: a conversation in the terminal, streaming, with TTFT and tokens/s."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.engine_options import with_engine_options
from baton.core.sampling import SamplingParams
from baton.engine.options import EngineOptions
from baton.obs.log import show_logs

if TYPE_CHECKING:
    from baton.engine.llm import LLM


@with_engine_options
def chat(
    options: EngineOptions,
    message: Annotated[list[str] | None, typer.Option(help="Say this and stop; may be given several times.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output tokens an answer; no limit by default.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")] = 1.0,
) -> None:
    """Talk to a model. An empty line or Ctrl-D ends it; Ctrl-C ends an answer."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p)
    show_logs()
    from baton.engine.llm import LLM

    conversation = [] if system is None else [{"role": "system", "content": system}]
    with LLM.from_options(options) as llm:
        for said in message or _typed():
            conversation.append({"role": "user", "content": said})
            conversation.append({"role": "assistant", "content": _answer(llm, conversation, params)})


def _typed() -> Iterator[str]:
    while True:
        try:
            said = input("> ")
        except (EOFError, KeyboardInterrupt):
            return
        if not said.strip():
            return
        yield said


def _answer(llm: LLM, conversation: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer to stdout and its figures to stderr; returns the text."""
    answer: list[str] = []
    times_s = [time.perf_counter()]
    num_tokens = 0
    try:
        for piece in llm.stream(llm.render_chat(conversation), params):
            times_s.append(time.perf_counter())
            answer.append(piece.text)
            num_tokens += piece.num_tokens
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    sys.stdout.write("\n")
    sys.stdout.flush()
    print(_figures(times_s, num_tokens), file=sys.stderr)
    return "".join(answer)


def _figures(times_s: list[float], num_tokens: int) -> str:
    """TTFT and decode rate; the first time is that of the request, the others those of the pieces."""
    if len(times_s) < 2:
        return "[no token]"
    line = f"[TTFT {(times_s[1] - times_s[0]) * 1000:.0f} ms, {num_tokens} tokens"
    if num_tokens > 1:
        line += f", {(num_tokens - 1) / (times_s[-1] - times_s[1]):.1f} tokens/s after the first"
    return line + "]"
