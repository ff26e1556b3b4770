"""Tensor operations of the sampler, in plain torch: counter-based noise, total order, counts, penalties, masks.

Random numbers are stateless. SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014) is a counter run through a mixer, so its n-th output can be computed directly. Three nested streams
are used: (seed, index) names the stream of a sequence, its output number `position` is the key of one row, and
the outputs of the stream that starts at that key are the random bits of the vocabulary.

Shape letters: R rows, V vocabulary, M candidates, L tokens of the longest row.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 1 << 64
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MAX_UNIFORM = 1.0 - 2.0**-24  # the largest float32 below 1


def stream_key(seed: int, index: int) -> int:
    """The 64-bit key (as a signed integer) of sequence `index` of a request with this seed."""
    return _signed(_mix_int(_mix_int(seed + _GAMMA) + (index + 1) * _GAMMA))


def row_keys(streams: Tensor, positions: Tensor) -> Tensor:
    """Keys int64 [R] of the tokens at `positions` int64 [R] of sequences with stream keys `streams` int64 [R]."""
    return mix64((positions + 1) * _signed(_GAMMA) + streams)


def mix64(x: Tensor) -> Tensor:
    """SplitMix64's output function on int64, elementwise; overwrites and returns `x`.

    z = (z ^ z>>30) * m0; z = (z ^ z>>27) * m1; z ^ z>>31, with logical shifts: torch shifts int64 arithmetically, so
    the copies of the sign bit are masked away. Multiplication wraps.
    """
    shifted = torch.empty_like(x)
    for round_, shift in enumerate(_SHIFTS):
        torch.bitwise_right_shift(x, shift, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
        if round_ < len(_MULTIPLIERS):
            x.mul_(_signed(_MULTIPLIERS[round_]))
    return x


def gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise float32 [R, V] for row keys int64 [R]; elementwise, so a row never depends on others.

    One 64-bit output serves two neighbouring ids: the low half the even one, the high half the odd one.
    """
    counters = torch.arange(1, (vocab_size + 1) // 2 + 1, device=keys.device).mul_(_signed(_GAMMA))
    halves = mix64(keys[:, None] + counters).view(torch.int32)
    return _to_gumbel(halves[:, :vocab_size])


def gumbel_at(keys: Tensor, ids: Tensor) -> Tensor:
    """The entries `ids` int64 [R, M] of gumbel(keys, V), without computing the others; float32 [R, M]."""
    words = mix64((ids >> 1).add_(1).mul_(_signed(_GAMMA)).add_(keys[:, None]))
    return _to_gumbel(words >> ((ids & 1) << 5))


def _to_gumbel(bits: Tensor) -> Tensor:
    # u = (31 bits + 1/2) / 2^31, held below 1. The winner of a race has a small u, and small floats are exact here:
    # even a token of probability 1e-7 gets its share. -log(-log(1 - u)) is a Gumbel variable.
    uniform = bits.bitwise_and(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=_MAX_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def order_keys(x: Tensor) -> Tensor:
    """int64 [R, V] without ties that sort like `x` float32 [R, V]; of equal values the lower id is the greater.

    The bits of IEEE floats compare like sign-magnitude integers; flipping the magnitude of negative ones makes
    that two's complement.
    """
    bits = x.add(0.0).view(torch.int32)  # adding 0 turns -0 into +0
    bits.bitwise_xor_((bits >> 31).bitwise_and_(0x7FFFFFFF))
    ids = torch.arange(0x7FFFFFFF, 0x7FFFFFFF - x.shape[-1], -1, device=x.device)
    return bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(ids)


def count_tokens(tokens: Tensor, keep: Tensor, vocab_size: int) -> Tensor:
    """How often each id occurs in `tokens` int [R, L] where `keep` bool [R, L]; int32 [R, V]."""
    rows = tokens.shape[0]
    counts = torch.zeros(rows, vocab_size + 1, dtype=torch.int32, device=tokens.device)
    ids = torch.where(keep, tokens.to(torch.int64), vocab_size)
    counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.int32))
    return counts[:, :vocab_size]


def penalise(
    logits: Tensor, prompt: Tensor, output: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Penalised copy of logits float32 [R, V].

    Repetition (Keskar et al., CTRL, 2019): tokens in prompt or output have positive logits divided, negative
    ones multiplied. Then OpenAI's: logit - frequency * count - presence * (count > 0), over the output only.

    Args:
        prompt, output: int32 [R, V], counts of each id.
        repetition, presence, frequency: float32 [R].
    """
    repetition = repetition[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where((prompt + output) > 0, repeated, logits)
    return logits - frequency[:, None] * output - presence[:, None] * (output > 0)


def mask_by_bits(logits: Tensor, bits: Tensor) -> Tensor:
    """Copy of logits [R, V] with -inf where bit v % 32 of bits int32 [R, ceil(V / 32)] word v // 32 is 0."""
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits[:, :, None] >> places).bitwise_and_(1).flatten(1)[:, : logits.shape[-1]]
    return logits.masked_fill(allowed == 0, -torch.inf)


def _mix_int(x: int) -> int:
    """mix64 of one Python integer, unsigned."""
    x %= _WORD
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        x = ((x ^ (x >> shift)) * multiplier) % _WORD
    return x


def _signed(x: int) -> int:
    """The int64 with the same bits."""
    return x - _WORD if x >= _WORD // 2 else x
