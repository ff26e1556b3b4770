"""What the sampler remembers about the sequence in a slot: parameters resolved once, at admission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.request import Request
from baton.kernels.sampling import stream_key

_HOTTEST = 1e30  # finite in float32: -inf / inf would be NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class BadWords:
    """W forbidden token sequences of one request, on the device.

    Attributes:
        last: int64 [W], the token that would complete each.
        prefix: int64 [W, N], the tokens before it, right-aligned; -1 where there is none.
    """

    last: Tensor
    prefix: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotParams:
    """Sampling parameters of the sequence in one slot.

    Attributes:
        stream: key of its random numbers (signed 64 bits).
        top_k: 0 when it keeps everything.
        end_ids: tokens that min_tokens forbids.
        logprobs: top entries wanted; None is off.
        bias: (token ids int64 [B], biases float32 [B]) on the device.
        allowed: token ids int64 [A] on the device.
    """

    greedy: bool
    stream: int
    prompt_len: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    end_ids: tuple[int, ...]
    logprobs: int | None
    bias: tuple[Tensor, Tensor] | None
    allowed: Tensor | None
    bad_words: BadWords | None

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def truncated(self) -> bool:
        """Whether top_k or top_p drops tokens (both need the most likely tokens in order)."""
        return self.top_k > 0 or self.top_p < 1.0


def resolve(request: Request, index: int, vocab_size: int, device: torch.device) -> SlotParams:
    """Parameters of sequence `index` of a request. Token ids must lie in the vocabulary (the front checks)."""
    params = request.params
    assert params.greedy or params.seed is not None, "the front draws a seed for every sampled request"
    ends = set(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= request.eos_token_ids
    return SlotParams(
        greedy=params.greedy,
        stream=stream_key(params.seed or 0, index),
        prompt_len=len(request.prompt_token_ids),
        temperature=min(params.temperature, _HOTTEST),
        top_k=params.top_k if 0 < params.top_k < vocab_size else 0,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        end_ids=tuple(sorted(token for token in ends if 0 <= token < vocab_size)),
        logprobs=params.logprobs,
        bias=_bias(dict(params.logit_bias), device),
        allowed=_allowed(params.allowed_token_ids, device),
        bad_words=_bad_words(params.bad_words_token_ids, device),
    )


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device from (nested) host values, without waiting for the device."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _bias(bias: dict[int, float], device: torch.device) -> tuple[Tensor, Tensor] | None:
    if not bias:
        return None
    return upload(list(bias), torch.int64, device), upload(list(bias.values()), torch.float32, device)


def _allowed(ids: tuple[int, ...] | None, device: torch.device) -> Tensor | None:
    return None if ids is None else upload(sorted(set(ids)), torch.int64, device)


def _bad_words(words: tuple[tuple[int, ...], ...], device: torch.device) -> BadWords | None:
    if not words:
        return None
    width = max(len(word) for word in words) - 1
    prefixes = [[-1] * (width - len(word) + 1) + list(word[:-1]) for word in words]
    return BadWords(
        last=upload([word[-1] for word in words], torch.int64, device),
        prefix=upload(prefixes, torch.int64, device).view(len(words), width),
    )
