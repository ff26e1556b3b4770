"""What a caller asks of the sampler: values and their validation, no tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from baton.core.errors import RequestError

MAX_LOGPROBS = 20
MAX_N = 1024
_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_NAMES = {str: "strings", int: "integers", Sequence: "lists of integers"}
GREEDY_BELOW = 1e-5  # a lower temperature leaves nothing to chance
_SURROGATE = re.compile("[\ud800-\udfff]")


class GrammarKind(Enum):
    """How `Grammar.source` is to be read."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A constraint on the generated text.

    `source` is the JSON schema, the regular expression or the EBNF text; for CHOICE the JSON array of
    allowed strings; empty for JSON_OBJECT.

    Raises:
        RequestError: kind or source is something else; param is "grammar".
    """

    kind: GrammarKind
    source: str = ""

    def __post_init__(self) -> None:
        _require(isinstance(self.kind, GrammarKind), "grammar", f"needs a GrammarKind as kind, got {self.kind!r}")
        _require(isinstance(self.source, str), "grammar", "needs text as source")
        _require(not _SURROGATE.search(self.source), "grammar", "must be valid Unicode text")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens. Defaults are vLLM's; every field is checked at construction.

    Attributes:
        n: sequences generated from one prompt.
        temperature: 0 (or below 1e-5) is greedy.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        presence_penalty, frequency_penalty: subtracted from logits of tokens in the output (OpenAI's definition).
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output (CTRL),
            between 0.01 and 100.
        logit_bias: added to the logits of these token ids, between -100 and 100 (OpenAI's range).
        allowed_token_ids: if given, nothing else can be sampled.
        bad_words: texts that must not be produced (resolved to token sequences by the front).
        bad_words_token_ids: the same, already tokenised.
        max_tokens: output length limit; None means as many as max_model_len leaves.
        min_tokens: end-of-sequence and stop tokens cannot be sampled before this many.
        stop: strings that end the output; not part of it unless include_stop_str_in_output.
        stop_token_ids: token ids that end the output, in addition to the model's own.
        ignore_eos: go on after the model's end-of-sequence tokens.
        seed: same seed, same tokens, whatever the batch; None draws a fresh one at admission.
        logprobs: number of most likely tokens reported per output token (0: only the sampled one); None: off.
        prompt_logprobs: the same for every prompt token but the first.
        grammar: constrain the output.
        detokenize: False skips text (stop strings then cannot work).
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        RequestError: a value is out of range; `param` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        # Lists are what callers write; tuples are what we keep.
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else _tuple(value, name, str))
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else _tuple(value, name, int))
        words = _tuple(self.bad_words_token_ids, "bad_words_token_ids", Sequence)
        words = tuple(_tuple(word, "bad_words_token_ids", int) for word in words)
        object.__setattr__(self, "bad_words_token_ids", words)
        self._check_types()
        self._check_ranges()
        self._check_lengths()
        self._check_tokens()

    def _check_types(self) -> None:
        for name in ("n", "top_k", "min_tokens", "max_tokens", "seed", "logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            optional = name not in ("n", "top_k", "min_tokens")
            _require((optional and value is None) or _is(value, int), name, f"must be an integer, got {value!r}")
        for name in _FLOATS:
            value = getattr(self, name)
            _require(_is(value, (int, float)), name, f"must be a number, got {value!r}")
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", "must map token ids to numbers")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # what the caller does to it later is not ours
        _require(self.stop_token_ids is not None, "stop_token_ids", "must be a list of integers")
        _require(self.grammar is None or isinstance(self.grammar, Grammar), "grammar", "must be a Grammar")

    def _check_ranges(self) -> None:
        _require(1 <= self.n <= MAX_N, "n", f"must be between 1 and {MAX_N}, got {self.n}")
        _require(_in(self.temperature, 0.0, math.inf), "temperature", "must be a finite number >= 0")
        _require(self.top_k >= -1, "top_k", f"must be -1, 0 or positive, got {self.top_k}")
        _require(0.0 < self.top_p <= 1.0, "top_p", f"must be in (0, 1], got {self.top_p}")
        _require(0.0 <= self.min_p <= 1.0, "min_p", f"must be in [0, 1], got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2.0 <= value <= 2.0, name, f"must be in [-2, 2], got {value}")
        _require(
            0.01 <= self.repetition_penalty <= 100.0,
            "repetition_penalty",
            f"must be in [0.01, 100], got {self.repetition_penalty}",
        )
        _require(
            self.seed is None or -(1 << 63) <= self.seed < 1 << 64, "seed", f"must fit in 64 bits, got {self.seed}"
        )

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", f"must be at least 1, got {self.max_tokens}")
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"must not exceed max_tokens={self.max_tokens}, got {self.min_tokens}",
            )
        _require(self.min_tokens >= 0, "min_tokens", f"must be at least 0, got {self.min_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(
                value is None or 0 <= value <= MAX_LOGPROBS,
                name,
                f"must be between 0 and {MAX_LOGPROBS}, got {value}",
            )
        _require(all(self.stop), "stop", "must not contain an empty string")
        _require(not self.stop or self.detokenize, "stop", "needs detokenize=True: stop strings are text")
        _require(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            "must not be empty",
        )
        _require(all(self.bad_words), "bad_words", "must not contain an empty string")
        _require(all(self.bad_words_token_ids), "bad_words_token_ids", "must not contain an empty list")

    def _check_tokens(self) -> None:
        for token, bias in self.logit_bias.items():
            _require(
                _is(bias, (int, float)) and -100.0 <= bias <= 100.0,
                "logit_bias",
                f"of token {token} must be a number in [-100, 100], got {bias!r}",
            )
        for name, token in self._token_ids():
            _require(_is(token, int) and token >= 0, name, f"must name token ids (integers >= 0), got {token!r}")

    def _token_ids(self) -> Iterator[tuple[str, int]]:
        """(field, token id) for every token id named, stop tokens last."""
        yield from (("logit_bias", token) for token in self.logit_bias)
        yield from (("allowed_token_ids", token) for token in self.allowed_token_ids or ())
        yield from (("bad_words_token_ids", token) for word in self.bad_words_token_ids for token in word)
        yield from (("stop_token_ids", token) for token in self.stop_token_ids)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have. A stop token it does not have is harmless.

        Raises:
            RequestError: `param` names the field.
        """
        for name, token in self._token_ids():
            _require(
                token < vocab_size or name == "stop_token_ids",
                name,
                f"must name token ids below the vocabulary size {vocab_size}, got {token}",
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    """isinstance, where True and False are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _tuple(value: object, name: str, kind: type) -> tuple[Any, ...]:
    """A list as a tuple, entries checked."""
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        entries = tuple(value)
        if all(_is(entry, kind) and (kind is str or not isinstance(entry, str)) for entry in entries):
            return entries
    raise RequestError(f"{name} must be a list of {_NAMES[kind]}, got {value!r}", param=name)


def _in(value: float, low: float, high: float) -> bool:
    return low <= value < high


def _require(condition: bool, param: str, rule: str) -> None:
    if not condition:
        raise RequestError(f"{param} {rule}", param=param)
