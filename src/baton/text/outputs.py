"""What a caller gets back, built from deltas: text, stop strings, logprobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from baton.core.request import FinishReason, Request, SequenceDelta, TokenLogprobs
from baton.text.stops import StopMatcher
from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the n completions of a prompt.

    Attributes:
        index: 0 .. n-1.
        text: continues the prompt's, as TextStream defines it; empty when detokenize is off.
        token_ids: all output tokens, the ones that ended it included.
        logprobs: one entry per token that was not resumed when asked for, else None.
        finish_reason: "stop", "length", or "error" when a grammar could not be continued; None while running.
        stop_reason: the stop string or stop token id that ended it; None for end-of-sequence.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """Everything that came of one prompt. The properties are those of the first completion.

    Attributes:
        prompt: the text, when the prompt was given as text.
        prompt_logprobs: for prompt tokens 1.., when asked for, else None.
        num_cached_tokens: prompt tokens whose KV came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Output tokens of the first completion."""
        return self.outputs[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Logprobs of the first completion."""
        return self.outputs[0].logprobs

    @property
    def finish_reason(self) -> str | None:
        """Why the first completion ended."""
        return self.outputs[0].finish_reason

    @property
    def finished(self) -> bool:
        """Whether all completions ended."""
        return all(output.finish_reason is not None for output in self.outputs)


class OutputCollector:
    """Gathers the deltas of one request.

    Args:
        request: as given to the engine.
        prompt: its text, if it was text.
        tokenizer: None leaves text empty.
        finish: called with (request_id, index) when a stop string ends a sequence that the engine still runs.
    """

    def __init__(
        self,
        request: Request,
        *,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        finish: Callable[[str, int], object],
    ) -> None:
        params = request.params
        self._finish = finish
        self._texts: list[tuple[TextStream, StopMatcher] | None] = [
            (
                TextStream(tokenizer, params.skip_special_tokens, request.prompt_token_ids),
                StopMatcher(params.stop, include_stop=params.include_stop_str_in_output),
            )
            if tokenizer is not None and params.detokenize
            else None
            for _ in range(params.n)
        ]
        self.output = RequestOutput(
            request_id=request.request_id,
            prompt=prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[
                CompletionOutput(index=i, logprobs=None if params.logprobs is None else []) for i in range(params.n)
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [],
        )
        self.request = request
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output

    def add(self, delta: SequenceDelta) -> str:
        """Take one delta in; returns the text that became final. Deltas after the end are ignored."""
        output = self.output.outputs[delta.index]
        if output.finish_reason is not None:
            return ""
        if delta.index == 0:
            self.output.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs and not self.output.prompt_logprobs:
            self.output.prompt_logprobs = list(delta.prompt_logprobs)
        before = len(output.text)
        for place, token_id in enumerate(delta.token_ids):
            output.token_ids.append(token_id)
            if output.logprobs is not None:
                output.logprobs.append(delta.logprobs[place])
            last = place == len(delta.token_ids) - 1
            if self._add_text(output, token_id, ends=last and delta.finish_reason is FinishReason.STOP):
                if delta.finish_reason is None:
                    self._finish(self.output.request_id, delta.index)
                return output.text[before:]
        if delta.finish_reason is not None:
            self._end(output, delta.finish_reason, delta.stop_token_id)
        return output.text[before:]

    def replay(self, token_ids: Sequence[int], finish_reason: FinishReason | None, stop_token_id: int | None) -> None:
        """Take the tokens that the request resumes behind, as if they had just come; they have no logprobs.

        Args:
            finish_reason, stop_token_id: why the last of them ends the sequence.
        """
        output = self.output.outputs[0]
        for number, token_id in enumerate(token_ids, start=1):
            output.token_ids.append(token_id)
            if self._add_text(output, token_id, ends=number == len(token_ids) and finish_reason is FinishReason.STOP):
                return
        if finish_reason is not None:
            self._end(output, finish_reason, stop_token_id)

    def _add_text(self, output: CompletionOutput, token_id: int, *, ends: bool) -> bool:
        """Decode one token; returns whether a stop string ended the sequence.

        A token that ends the sequence leaves no text unless asked for. Text of the first min_tokens tokens is never
        searched for stop strings.
        """
        streams = self._texts[output.index]
        if streams is None or (ends and not self._include_stop):
            return False
        stream, stops = streams
        text = stream.push([token_id])
        if len(output.token_ids) <= self._min_tokens:
            output.text += text
            return False
        text, matched = stops.push(text)
        output.text += text
        if matched is None:
            return False
        output.finish_reason, output.stop_reason = FinishReason.STOP.value, matched
        return True

    def _end(self, output: CompletionOutput, reason: FinishReason, stop_token_id: int | None) -> None:
        output.finish_reason, output.stop_reason = reason.value, stop_token_id
        streams = self._texts[output.index]
        if streams is None:
            return
        stream, stops = streams
        text, matched = stops.push(stream.finish())
        output.text += text
        if matched is None:
            output.text += stops.flush()
        else:
            output.finish_reason, output.stop_reason = FinishReason.STOP.value, matched
