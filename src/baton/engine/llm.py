"""The Python front of one engine: prompts in, texts out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats
from baton.engine.build import build_engine
from baton.engine.options import EngineOptions
from baton.engine.progress import Progress
from baton.text.bad_words import bad_words_token_ids
from baton.text.outputs import OutputCollector, RequestOutput
from baton.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one step added to a streamed completion. The text may be empty: a character can span several tokens."""

    text: str
    num_tokens: int


class LLM:
    """One engine in this process.

    Args:
        model: a Hugging Face folder or a .gguf file.
        options: any other field of EngineOptions, by keyword.

    Raises:
        ConfigError: options that cannot work.
        ModelError: a model that cannot be served.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        self._open(EngineOptions(model=str(model), **options))

    @classmethod
    def from_options(cls, options: EngineOptions) -> Self:
        """The same from options that were put together elsewhere."""
        llm = cls.__new__(cls)
        llm._open(options)
        return llm

    def _open(self, options: EngineOptions) -> None:
        self._parts = build_engine(options)
        self._engine = self._parts.engine
        self._ids = itertools.count()
        self._seeds = random.Random(self._parts.options.seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = False,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Complete prompts (texts or lists of token ids), batched; outputs in the order of the prompts.

        Args:
            params: one for all, or one a prompt; None is SamplingParams().

        Raises:
            RequestError: a prompt or its parameters cannot be served; then none of them runs.
        """
        batch = _as_batch(prompts)
        each = _params_for(params, len(batch))
        collectors = [
            self._collector(prompt, p, priority=priority, cache_salt=cache_salt)
            for prompt, p in zip(batch, each, strict=True)
        ]
        with Progress(len(batch), show=show_progress) as progress:
            self._run(collectors, progress)
        return [collector.output for collector in collectors]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """Complete one prompt, yielding its first completion piece by piece, a piece a step.

        Closing the iterator aborts the request.
        """
        collector = self._collector(prompt, params or SamplingParams(), priority=0, cache_salt="")
        request_id = collector.output.request_id
        try:
            self._engine.add(collector.request)
            while not collector.output.finished:
                for delta in self._engine.step():
                    text = collector.add(delta)
                    if delta.index == 0:
                        yield Piece(text=text, num_tokens=len(delta.token_ids))
        finally:
            self._engine.finish(request_id)
            self._drain()

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        show_progress: bool = False,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered by the model's chat template.

        Raises:
            RequestError: the template refuses the messages, or the model has none.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [
            self.render_chat(
                conversation,  # type: ignore[arg-type]
                tools=tools,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                **template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, params, show_progress=show_progress)

    def render_chat(self, messages: Messages, **template_options: Any) -> list[int]:
        """Token ids of a conversation, ready to be completed."""
        tokenizer = self._tokenizer("a chat")
        text = tokenizer.render_chat(messages, **template_options)
        return tokenizer.encode(text, add_special_tokens=False)

    def check(self) -> None:
        """Assert that every block and slot is accounted for; for tests, when nothing runs or at any time."""
        self._engine.check()

    def stats(self) -> SchedulerStats:
        """Figures of the scheduler and the cache at this moment."""
        return self._engine.stats()

    def shutdown(self) -> None:
        """End the runner thread. The object cannot be used afterwards."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _run(self, collectors: Sequence[OutputCollector], progress: Progress) -> None:
        by_id = {collector.output.request_id: collector for collector in collectors}
        try:
            for collector in collectors:
                self._engine.add(collector.request)
            while self._engine.has_work():
                for delta in self._engine.step():
                    collector = by_id[delta.request_id]
                    collector.add(delta)
                    progress.tokens(len(delta.token_ids))
                    if delta.finish_reason is not None and collector.output.finished:
                        progress.finished()
        finally:
            for request_id in by_id:
                self._engine.finish(request_id)
            self._drain()

    def _drain(self) -> None:
        while self._engine.has_work():
            self._engine.step()

    def _collector(self, prompt: Prompt, params: SamplingParams, *, priority: int, cache_salt: str) -> OutputCollector:
        text = prompt if isinstance(prompt, str) else None
        token_ids = self._tokenizer("a text prompt").encode(prompt) if isinstance(prompt, str) else prompt
        request = Request(
            request_id=f"llm-{next(self._ids)}",
            prompt_token_ids=tuple(int(token) for token in token_ids),
            params=self._resolve(params),
            priority=priority,
            cache_salt=cache_salt,
            eos_token_ids=self._parts.info.eos_token_ids,
        )
        self._parts.check(request)
        return OutputCollector(
            request,
            prompt=text,
            tokenizer=self._parts.tokenizer,
            finish=lambda request_id, index: self._engine.finish(request_id, index),
        )

    def _resolve(self, params: SamplingParams) -> SamplingParams:
        """Fill what only the front knows: a seed, and bad words as tokens."""
        if params.seed is None:
            params = replace(params, seed=self._seeds.getrandbits(63))
        if params.bad_words:
            words = bad_words_token_ids(self._tokenizer("bad_words"), params.bad_words)
            params = replace(params, bad_words=(), bad_words_token_ids=params.bad_words_token_ids + words)
        return params

    @property
    def vocab_size(self) -> int:
        """Rows of the model's output; token ids are below it."""
        return self._parts.info.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        return self._tokenizer("text")

    def _tokenizer(self, need: str) -> Tokenizer:
        if self._parts.tokenizer is None:
            raise RequestError(f"{need} needs a tokenizer and the model has none; give token ids", param="prompt")
        return self._parts.tokenizer


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_for(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(f"got {len(params)} sampling params for {num_prompts} prompts", param="params")
    return list(params)
