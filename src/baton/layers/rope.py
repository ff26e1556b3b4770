"""Tables of cos and sin by position, for every supported kind of rotary position embedding.

Formulas: RoPE, arXiv:2104.09864; dynamic NTK as in transformers' `dynamic`; Llama 3.1's by-part scaling; YaRN,
arXiv:2309.00071. All in float32 and in the order of operations transformers uses, so that tables agree to the bit or
nearly so.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baton.core.rope_config import RopeConfig, RopeKind


class RopeTable:
    """cos and sin of positions 0 .. max_positions - 1, [max_positions, rotary_dim / 2] each, in the model's dtype.

    DYNAMIC is made a pure function of position: the token at position p uses the frequencies of a sequence of
    max(p + 1, original maximum) tokens. This equals transformers within the original maximum, and beyond it when tokens
    are fed one by one; unlike there, it does not depend on how a prompt is cut into chunks.
    """

    def __init__(self, rope: RopeConfig, max_positions: int, *, dtype: torch.dtype, device: torch.device) -> None:
        angles = _angles(rope, max_positions)
        scale = attention_factor(rope)
        self._cos = (angles.cos() * scale).to(dtype=dtype, device=device)
        self._sin = (angles.sin() * scale).to(dtype=dtype, device=device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [T] -> cos, sin [T, rotary_dim / 2]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [rotary_dim / 2]; DYNAMIC before any stretching."""
    base = _series(rope.theta, rope.rotary_dim)
    if rope.kind is RopeKind.LINEAR:
        return base / rope.factor
    if rope.kind is RopeKind.LLAMA3:
        return _llama3(rope, base)
    if rope.kind is RopeKind.YARN:
        return _yarn(rope)
    return base / torch.tensor(rope.freq_factors) if rope.freq_factors else base


def attention_factor(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by: YaRN's temperature (its section 3.4), else 1."""
    if rope.kind is not RopeKind.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _angles(rope: RopeConfig, max_positions: int) -> Tensor:
    positions = torch.arange(max_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope))
    if rope.kind is RopeKind.DYNAMIC and max_positions > rope.max_positions:
        late = torch.arange(rope.max_positions, max_positions)
        angles[rope.max_positions :] = late.float()[:, None] * _dynamic(rope, late + 1)
    return angles


def _series(theta: float | Tensor, dim: int) -> Tensor:
    """theta^(-2i/dim); theta may be [n, 1] to give [n, dim / 2]."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    powers: Tensor = theta**exponents
    return 1.0 / powers


def _dynamic(rope: RopeConfig, lengths: Tensor) -> Tensor:
    """Frequencies [n, dim / 2] for sequences of `lengths` [n] tokens, all beyond the original maximum."""
    ratio = rope.factor * lengths / rope.max_positions - (rope.factor - 1)
    theta = rope.theta * ratio ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return _series(theta[:, None], rope.rotary_dim)


def _llama3(rope: RopeConfig, base: Tensor) -> Tensor:
    """Keep short waves, divide long ones by the factor, blend in between."""
    original, low, high = rope.original_max_positions, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / base
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / rope.factor + smooth * base
    scaled = torch.where(wavelength > original / low, base / rope.factor, blended)
    return torch.where(wavelength < original / high, base, scaled)


def _yarn(rope: RopeConfig) -> Tensor:
    """Keep dimensions that turn often within the original context, interpolate those that do not, blend by a ramp."""
    dim = rope.rotary_dim
    powers = rope.theta ** (torch.arange(0, dim, 2).float() / dim)
    low, high = _turning_dimension(rope, rope.beta_fast), _turning_dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return (1.0 / (rope.factor * powers)) * (1 - keep) + (1.0 / powers) * keep


def _turning_dimension(rope: RopeConfig, turns: float) -> float:
    """The (fractional) dimension pair that makes this many turns within the original context."""
    ratio = rope.original_max_positions / (turns * 2 * math.pi)
    return rope.rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
