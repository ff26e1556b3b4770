"""What completions and chat completions share: sampling fields, stream options, usage."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What a client sends; a larger number would fit no message to the engine."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a stream reports its usage: in a chunk of its own at the end, in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both kinds of request. Null is "not given" everywhere; fields not named here are ignored.

    Ranges are checked where they are used (core/sampling.py), so that a refusal names the field.
    """

    model: str | None = None
    n: Int | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[Int] | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    seed: Int | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Int | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Int | None = None
    priority: Int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    user: Any = None
    use_beam_search: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    resume_token_ids: list[Int] | None = None

    @property
    def num_choices(self) -> int:
        """Choices a prompt in the answer."""
        return 1 if self.n is None else self.n


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens: prompt tokens whose KV came from the prefix cache."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one HTTP request, all prompts and choices together; each prompt counts once."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate at one place of the prompt (vLLM's `prompt_logprobs`). rank: 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""One entry a prompt token, by token id; null for the first, which nothing precedes."""
