"""The Python front of one engine: prompts in, texts out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.stats import SchedulerStats
from baton.engine.build import build_engine
from baton.engine.intake import Prompt, as_batch, as_params, as_token_ids
from baton.engine.options import EngineOptions
from baton.engine.progress import Progress
from baton.text.bad_words import bad_words_token_ids
from baton.text.outputs import OutputCollector, RequestOutput
from baton.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What was added to a streamed completion. The text may be empty: a character can span several tokens."""

    text: str
    num_tokens: int


class LLM:
    """One engine in this process. Calls may interleave (a stream stays open while others run), threads may not.

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
        self._seeds = random.Random(options.seed)
        self._live: dict[str, OutputCollector] = {}

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
            priority: lower goes first.
            cache_salt: cached prefixes are shared with calls of the same salt only.

        Raises:
            RequestError: a prompt or its parameters cannot be served; then none of them runs.
            EngineDeadError: the engine stopped; the cause is chained.
        """
        batch = as_batch(prompts)
        collectors = [
            self._collector(prompt, each, priority=priority, cache_salt=cache_salt)
            for prompt, each in zip(batch, as_params(params, len(batch)), strict=True)
        ]
        with Progress([collector.output for collector in collectors], show=show_progress) as progress:
            self._run(collectors, progress)
        return [collector.output for collector in collectors]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0, cache_salt: str = ""
    ) -> Iterator[Piece]:
        """Complete one prompt, yielding the completion piece by piece. Closing the iterator aborts the request.

        Raises:
            RequestError: the prompt or its parameters cannot be served; n must be 1.
            EngineDeadError: while iterating, see `generate`.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise RequestError(f"stream yields one completion; n must be 1, got {params.n}", param="n")
        (only,) = as_batch([prompt])
        return self._stream(self._collector(only, params, priority=priority, cache_salt=cache_salt))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered by the model's chat template.

        Args:
            template_options: see `render_chat`; the others as in `generate`.

        Raises:
            RequestError: the template refuses the messages, or the model has none.
            EngineDeadError: see `generate`.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise RequestError("messages must be a list of messages, or a list of such lists", param="messages")
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        prompts = [self.render_chat(conversation, **template_options) for conversation in conversations]
        return self.generate(prompts, params, show_progress=show_progress, priority=priority, cache_salt=cache_salt)

    def render_chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, ready to be completed.

        Args:
            chat_template: Jinja source in place of the model's own.
            template_variables: further variables of the template, such as enable_thinking.

        Raises:
            RequestError: the template refuses the messages, or the model has none.
        """
        tokenizer = self._tokenizer("a chat")
        text = tokenizer.render_chat(
            messages,
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            **(template_variables or {}),
        )
        return tokenizer.encode(text, add_special_tokens=False)

    def check(self) -> None:
        """Assert that every block and slot is accounted for."""
        self._engine.check()

    def stats(self) -> SchedulerStats:
        """Figures of the scheduler and the cache at this moment."""
        return self._engine.stats()

    def shutdown(self) -> None:
        """End the runner thread. Whatever is still asked of the object raises EngineDeadError."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _run(self, collectors: Sequence[OutputCollector], progress: Progress) -> None:
        try:
            for collector in collectors:
                self._add(collector)
            while not all(collector.output.finished for collector in collectors):
                self._advance()
                progress.update()
        finally:
            self._end(collectors)

    def _stream(self, collector: OutputCollector) -> Iterator[Piece]:
        completion = collector.output.outputs[0]
        num_chars = num_tokens = 0
        try:
            self._add(collector)
            while True:
                # Both may grow while this generator is suspended: other calls move this request too.
                text, new_tokens = completion.text[num_chars:], len(completion.token_ids) - num_tokens
                if text or new_tokens:
                    num_chars, num_tokens = num_chars + len(text), num_tokens + new_tokens
                    yield Piece(text=text, num_tokens=new_tokens)
                elif collector.output.finished:
                    return
                else:
                    self._advance()
        finally:
            self._end([collector])

    def _add(self, collector: OutputCollector) -> None:
        self._engine.add(collector.request)
        self._live[collector.request.request_id] = collector

    def _advance(self) -> None:
        """One step of the engine, for every live request: whoever waits moves all of them."""
        for delta in self._engine.step():
            collector = self._live.get(delta.request_id)
            if collector is not None:
                collector.add(delta)

    def _end(self, collectors: Iterable[OutputCollector]) -> None:
        """Forget requests, ended or not; when none is left, let the engine come to rest."""
        for collector in collectors:
            if self._live.pop(collector.request.request_id, None) is not None:
                self._engine.finish(collector.request.request_id)
        while not self._live and self._engine.has_work():
            self._engine.step()

    def _collector(self, prompt: Prompt, params: SamplingParams, *, priority: int, cache_salt: str) -> OutputCollector:
        text = prompt if isinstance(prompt, str) else None
        token_ids = self._tokenizer("a text prompt").encode(prompt) if isinstance(prompt, str) else prompt
        request = Request(
            request_id=f"llm-{next(self._ids)}",
            prompt_token_ids=as_token_ids(token_ids),
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
            finish=self._engine.finish,
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
