"""POST /v1/completions: what the client gets back, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.handoff import Ticket
from baton.core.request import TokenLogprobs
from baton.server.asking import Asking
from baton.server.choice import Choice, Piece, choices_of
from baton.server.logprobs import completion_logprobs, prompt_logprobs, token_name
from baton.server.prompts import Prompt
from baton.server.token_texts import OffsetCounter
from baton.server.usage import total_usage, usage_of
from baton.text.outputs import CompletionOutput, OutputCollector
from baton.wire.openai.common import Usage
from baton.wire.openai.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest

_encode = msgspec.json.Encoder().encode


class CompletionAnswer:
    """Builds the answer to one request.

    Args:
        ask: the request.
        prompts: in order.
    """

    def __init__(self, ask: Asking[CompletionRequest], prompts: Sequence[Prompt]) -> None:
        body = ask.body
        self._ask = ask
        self._prompts = prompts
        self._num_choices = body.num_choices
        self._logprobs = body.logprobs
        self._score_only = body.score_only
        self._name = token_name(ask.server.token_texts, as_ids=bool(body.return_tokens_as_token_ids))
        self._offsets: dict[int, OffsetCounter] = {}
        self._collectors: dict[int, OutputCollector] = {}

    def whole(self, collectors: Sequence[OutputCollector], ticket: Ticket | None = None) -> Completion:
        """The answer in one piece. ticket: of a request that gives its KV away."""
        choices = []
        for place, collector in enumerate(collectors):
            for rank, choice in enumerate(self._best(choices_of([collector]))):
                choices.append(self._choice(choice, choice.take(), place, place * self._num_choices + rank, whole=True))
        usage = total_usage(collectors)
        if self._score_only:
            usage = usage_of(usage.prompt_tokens, 0, usage.prompt_tokens_details.cached_tokens)
        return self._completion(choices, usage, ticket)

    def chunks(self, choice: Choice, piece: Piece, ticket: Ticket | None = None) -> list[bytes]:
        """The chunk that shows a piece."""
        place = choice.position // self._num_choices
        self._collectors[place] = choice.collector
        shown = self._choice(choice, piece, place, choice.position, whole=False)
        usage: Usage | UnsetType = UNSET
        if self._ask.continuous_usage:
            output = choice.collector.output
            num_tokens = 0 if self._score_only else piece.num_tokens
            usage = usage_of(len(output.prompt_token_ids), num_tokens, output.num_cached_tokens)
        return [_encode(self._completion([shown], usage, ticket))]

    def usage_chunk(self) -> bytes | None:
        """The chunk behind all others."""
        if not self._ask.include_usage:
            return None
        usage = total_usage(self._collectors.values())
        if self._score_only:
            usage = usage_of(usage.prompt_tokens, 0, usage.prompt_tokens_details.cached_tokens)
        return _encode(self._completion([], usage))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType, ticket: Ticket | None = None
    ) -> Completion:
        return Completion(
            id=self._ask.id,
            created=self._ask.created,
            model=self._ask.model,
            choices=choices,
            usage=usage,
            kv_transfer_params=self._ask.ticket_params(ticket),
        )

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """The n choices of highest mean logprob (best_of), or all."""
        if len(choices) == self._num_choices:
            return choices
        return sorted(choices, key=lambda choice: _mean_logprob(choice.output), reverse=True)[: self._num_choices]

    def _choice(self, choice: Choice, piece: Piece, place: int, index: int, *, whole: bool) -> CompletionChoice:
        body, echo = self._ask.body, bool(self._ask.body.echo) and piece.first
        output = choice.collector.output
        ids = bool(body.return_token_ids)
        shown_prompt = body.prompt_logprobs if whole else None
        return CompletionChoice(
            index=index,
            text=(self._prompt_text(place) if echo else "") + ("" if self._score_only else piece.text),
            logprobs=None if self._logprobs is None else self._piece_logprobs(choice, piece, place, index, echo=echo),
            finish_reason="length" if self._score_only and piece.finish_reason else piece.finish_reason,
            stop_reason=None if self._score_only else piece.stop_reason,
            token_ids=([] if self._score_only else piece.token_ids) if ids else UNSET,
            prompt_token_ids=output.prompt_token_ids if ids and piece.first else UNSET,
            prompt_logprobs=UNSET
            if shown_prompt is None
            else prompt_logprobs(output.prompt_logprobs or [], self._ask.server.token_texts, shown_prompt),
        )

    def _prompt_text(self, place: int) -> str:
        prompt = self._prompts[place]
        if prompt.text is not None or self._ask.server.tokenizer_or_none is None:
            return prompt.text or ""
        return self._ask.server.tokenizer.decode(prompt.token_ids, self._skips_special)

    @property
    def _skips_special(self) -> bool:
        return self._ask.body.skip_special_tokens is not False

    def _piece_logprobs(
        self, choice: Choice, piece: Piece, place: int, index: int, *, echo: bool
    ) -> CompletionLogprobs:
        assert self._logprobs is not None
        entries: list[tuple[int, TokenLogprobs | None]] = []
        output = choice.collector.output
        if not self._score_only:
            entries = [(entry.token_id, entry) for entry in piece.logprobs]
        if index not in self._offsets:
            start = len(self._prompt_text(place)) if self._ask.body.echo else 0
            self._offsets[index] = self._counter(start, output.prompt_token_ids)
            for token_id in choice.collector.request.resumed:
                self._offsets[index].push(token_id)
        shown = completion_logprobs(entries, self._name, self._logprobs, self._offsets[index])
        if not echo:
            return shown
        before: list[tuple[int, TokenLogprobs | None]] = [(output.prompt_token_ids[0], None)]
        before += [(entry.token_id, entry) for entry in output.prompt_logprobs or []]
        prompt = completion_logprobs(before, self._name, self._logprobs, self._counter(0))
        return CompletionLogprobs(
            text_offset=prompt.text_offset + shown.text_offset,
            token_logprobs=prompt.token_logprobs + shown.token_logprobs,
            tokens=prompt.tokens + shown.tokens,
            top_logprobs=prompt.top_logprobs + shown.top_logprobs,
        )

    def _counter(self, start: int, prompt_token_ids: Sequence[int] = ()) -> OffsetCounter:
        return OffsetCounter(
            self._ask.server.tokenizer_or_none,
            skip_special_tokens=self._skips_special,
            start=start,
            prompt_token_ids=prompt_token_ids,
        )


def _mean_logprob(output: CompletionOutput) -> float:
    entries = output.logprobs or []
    return sum(entry.logprob for entry in entries) / max(1, len(entries))
