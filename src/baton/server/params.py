"""Turns the fields of a request into SamplingParams. Pure: no engine, no tokenizer, no clock."""

from __future__ import annotations

from baton.core.errors import RequestError
from baton.core.sampling import GREEDY_BELOW, Grammar, SamplingParams
from baton.wire.openai.common import GenerationFields

MAX_N = 128
MAX_STOPS = 4
MAX_BAD_WORDS = 1024
MAX_BAD_WORDS_CHARS = 20_000
"""Bad words are tokenized on the event loop and compared at every step: many would stop all other requests."""
_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
    "seed",
    "prompt_logprobs",
)


def sampling_params(
    ask: GenerationFields,
    *,
    n: int,
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
    max_logprobs: int = 20,
) -> SamplingParams:
    """The sampler's view of a request; fields that were not given have SamplingParams' defaults.

    Args:
        n, max_tokens, logprobs: as the endpoint reads them; their names and defaults differ between endpoints.

    Raises:
        RequestError: a value is out of range; `param` names the field.
    """
    given = {name: value for name in _SAME_NAME if (value := getattr(ask, name)) is not None}
    _check(ask, n)
    for name, value in (("logprobs", logprobs), ("prompt_logprobs", ask.prompt_logprobs)):
        if value is not None and value > max_logprobs:
            raise RequestError(f"{name} must be between 0 and {max_logprobs}, got {value}", param=name)
    return SamplingParams(
        n=n,
        max_tokens=max_tokens,
        logprobs=logprobs,
        grammar=grammar,
        stop=_stops(ask.stop),
        logit_bias=_logit_bias(ask.logit_bias),
        **given,
    )


def _check(ask: GenerationFields, n: int) -> None:
    if ask.use_beam_search:
        raise RequestError("use_beam_search is not supported; leave it out", param="use_beam_search")
    if ask.temperature is not None and ask.temperature > 2:
        raise RequestError(f"temperature must be between 0 and 2, got {ask.temperature}", param="temperature")
    if n > MAX_N:
        raise RequestError(f"n must be at most {MAX_N}, got {n}", param="n")
    if n > 1 and is_greedy(ask.temperature):
        raise RequestError(f"n must be 1 with temperature 0 (all choices would be the same), got {n}", param="n")
    if ask.stream_options is not None and not ask.stream:
        raise RequestError("stream_options needs stream=true", param="stream_options")
    if ask.prompt_logprobs is not None and ask.stream:
        raise RequestError("prompt_logprobs is not available with stream=true", param="prompt_logprobs")
    if ask.stream_interval is not None and ask.stream_interval < 1:
        raise RequestError(f"stream_interval must be at least 1, got {ask.stream_interval}", param="stream_interval")
    words = ask.bad_words or []
    if len(words) > MAX_BAD_WORDS or sum(map(len, words)) > MAX_BAD_WORDS_CHARS:
        raise RequestError(
            f"bad_words must have at most {MAX_BAD_WORDS} entries and {MAX_BAD_WORDS_CHARS} characters",
            param="bad_words",
        )


def is_greedy(temperature: float | None) -> bool:
    """Whether a request's temperature leaves nothing to chance; not given, it is 1."""
    return temperature is not None and 0 <= temperature < GREEDY_BELOW


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop must have at most {MAX_STOPS} entries, got {len(stops)}", param="stop")
    return stops


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    """JSON's keys are text; OpenAI's are token ids."""
    try:
        return {int(token): value for token, value in (bias or {}).items()}
    except ValueError:
        raise RequestError("logit_bias must map token ids (integers) to numbers", param="logit_bias") from None


def fit_max_tokens(asked: int | None, default: int | None, *, num_prompt: int, max_model_len: int, param: str) -> int:
    """Output tokens a request may have: what was asked for, else the default as far as there is room.

    Raises:
        RequestError: prompt and output do not fit into max_model_len.
    """
    room = max_model_len - num_prompt
    if room < 1:
        raise RequestError(
            f"the prompt has {num_prompt} tokens and max_model_len is {max_model_len}: "
            "no output token fits; shorten the prompt",
            param=param,
        )
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise RequestError(
            f"max_tokens={asked} and a prompt of {num_prompt} tokens exceed max_model_len={max_model_len}; "
            f"ask for at most {room}",
            param="max_tokens",
        )
    return asked


def truncated(token_ids: list[int], limit: int | None, max_model_len: int) -> list[int]:
    """The last `limit` tokens (vLLM's truncate_prompt_tokens); -1 keeps what leaves room for one output token.

    Raises:
        RequestError: the limit is neither -1 nor positive.
    """
    if limit is None:
        return token_ids
    if limit == -1:
        limit = max_model_len - 1
    if limit < 1:
        raise RequestError(
            f"truncate_prompt_tokens must be -1 or positive, got {limit}", param="truncate_prompt_tokens"
        )
    return token_ids[-limit:]
