"""What a caller asks of the sampler: values and their validation, no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from baton.core.errors import RequestError

MAX_LOGPROBS = 20


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
    """

    kind: GrammarKind
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens. Defaults are vLLM's; every field is checked at construction.

    Attributes:
        n: sequences generated from one prompt.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        presence_penalty, frequency_penalty: subtracted from logits of tokens in the output (OpenAI's definition).
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output (CTRL).
        logit_bias: added to the logits of these token ids.
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
        # Lists are what callers write; tuples are what we keep (hashable, frozen).
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name in ("stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        object.__setattr__(self, "bad_words_token_ids", tuple(tuple(w) for w in self.bad_words_token_ids))
        self._check_ranges()
        self._check_lengths()

    def _check_ranges(self) -> None:
        _require(self.n >= 1, "n", f"must be at least 1, got {self.n}")
        _require(_in(self.temperature, 0.0, math.inf), "temperature", "must be a finite number >= 0")
        _require(self.top_k >= -1, "top_k", f"must be -1, 0 or positive, got {self.top_k}")
        _require(0.0 < self.top_p <= 1.0, "top_p", f"must be in (0, 1], got {self.top_p}")
        _require(0.0 <= self.min_p <= 1.0, "min_p", f"must be in [0, 1], got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2.0 <= value <= 2.0, name, f"must be in [-2, 2], got {value}")
        _require(
            0.0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            f"must be a finite number > 0, got {self.repetition_penalty}",
        )
        for token, bias in self.logit_bias.items():
            _require(math.isfinite(bias), "logit_bias", f"of token {token} must be finite")

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

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def _in(value: float, low: float, high: float) -> bool:
    return low <= value < high


def _require(condition: bool, param: str, rule: str) -> None:
    if not condition:
        raise RequestError(f"{param} {rule}", param=param)
