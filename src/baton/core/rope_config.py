"""Rotary position embedding as a model declares it: kinds, numbers, and how they are read from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from baton.core.errors import ModelError

_ORIGINAL = "original_max_position_embeddings"


class RopeKind(Enum):
    """How frequencies are stretched for longer contexts. Values are Hugging Face's `rope_type`."""

    DEFAULT = "default"
    LINEAR = "linear"
    DYNAMIC = "dynamic"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Everything that decides cos and sin at a position.

    Attributes:
        theta: base of the geometric series of frequencies.
        rotary_dim: leading dimensions of a head that are rotated (even).
        max_positions: `max_position_embeddings`; DYNAMIC starts to stretch beyond it.
        factor: stretch of the context (all kinds but DEFAULT).
        original_max_positions: context of pre-training (LLAMA3, YARN).
        low_freq_factor, high_freq_factor: LLAMA3.
        beta_fast, beta_slow, truncate: YARN, range of dimensions that are blended.
        attention_factor: YARN, multiplies cos and sin; None derives it from the factor and the mscales.
        mscale, mscale_all_dim: YARN, 0 means unset.
        freq_factors: each frequency is divided by its factor, on top of DEFAULT; rotary_dim / 2 numbers or empty.
            GGUF files carry LLAMA3 scaling this way.
    """

    kind: RopeKind = RopeKind.DEFAULT
    theta: float = 10000.0
    rotary_dim: int
    max_positions: int
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    freq_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ModelError(f"rotary embeddings need an even number of dimensions >= 2, got {self.rotary_dim}")
        if self.freq_factors and len(self.freq_factors) != self.rotary_dim // 2:
            raise ModelError(f"expected {self.rotary_dim // 2} rope frequency factors, got {len(self.freq_factors)}")
        if self.freq_factors and self.kind is not RopeKind.DEFAULT:
            raise ModelError(f"rope frequency factors cannot be combined with rope type {self.kind.value!r}")
        _require(self.theta > 0, "rope_theta", "must be positive", self.theta)
        _require(self.factor > 0, "rope factor", "must be positive", self.factor)
        if self.kind in (RopeKind.LLAMA3, RopeKind.YARN):
            _require(self.original_max_positions > 0, "original_max_position_embeddings", "must be positive", 0)
        if self.kind is RopeKind.LLAMA3:
            low, high = self.low_freq_factor, self.high_freq_factor
            _require(0 < low < high, "low_freq_factor", f"must be in (0, high_freq_factor={high})", low)
        if self.kind is RopeKind.YARN:
            _require(self.theta > 1, "rope_theta", "must be greater than 1 for yarn", self.theta)
            _require(self.beta_slow > 0, "beta_slow", "must be positive", self.beta_slow)
            _require(self.beta_fast > 0, "beta_fast", "must be positive", self.beta_fast)
        if self.kind is RopeKind.DYNAMIC:
            _require(self.rotary_dim > 2, "head_dim", "must be greater than 2 for dynamic rope", self.rotary_dim)

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that these frequencies were made for.

        `max_position_embeddings` counts before stretching for LINEAR, DYNAMIC and YARN (YARN from the original
        length), and after it for LLAMA3: the convention of published checkpoints.
        """
        if self.kind is RopeKind.YARN:
            return round(self.original_max_positions * self.factor)
        if self.kind in (RopeKind.LINEAR, RopeKind.DYNAMIC):
            return round(self.max_positions * self.factor)
        return self.max_positions


def rope_from_hf(hf: Mapping[str, Any], *, head_dim: int, max_positions: int) -> RopeConfig:
    """Read rope from a config.json of either style: `rope_theta` + `rope_scaling`, or `rope_parameters`.

    Raises:
        ModelError: a kind or a partial rotation that is not supported, or a number that is missing.
    """
    found = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise ModelError(f"rope_scaling must be an object, got {found!r}")
    # null means absent.
    params = {name: value for name, value in found.items() if value is not None}
    kind = _kind(params)
    partial = params.get("partial_rotary_factor", hf.get("partial_rotary_factor")) or 1.0
    if partial != 1.0:
        raise ModelError(f"partial_rotary_factor={partial} is not supported for this architecture; it must be 1.0")
    common: dict[str, Any] = {
        "kind": kind,
        "theta": _number({"rope_theta": hf.get("rope_theta") or 10000.0, **params}, "rope_theta", kind),
        "rotary_dim": head_dim,
        "max_positions": max_positions,
    }
    # A value beside the rope dictionary wins over one inside, as in transformers.
    outer = hf.get(_ORIGINAL) or params.get(_ORIGINAL)
    original = int(_number({_ORIGINAL: outer or max_positions}, _ORIGINAL, kind))
    if kind is RopeKind.DEFAULT:
        return RopeConfig(**common)
    if kind is RopeKind.YARN:
        return RopeConfig(**common, **_yarn(params, original, max_positions))
    common["factor"] = _number(params, "factor", kind)
    if kind is RopeKind.LLAMA3:
        return RopeConfig(
            **common,
            original_max_positions=original,
            low_freq_factor=_number(params, "low_freq_factor", kind),
            high_freq_factor=_number(params, "high_freq_factor", kind),
        )
    return RopeConfig(**common)


def _kind(params: Mapping[str, Any]) -> RopeKind:
    name = params.get("rope_type") or params.get("type") or "default"
    nested = [key for key, value in params.items() if isinstance(value, Mapping)]
    if nested:
        raise ModelError(f"rope parameters per layer type ({', '.join(nested)}) are not supported; one set is")
    try:
        return RopeKind(name)
    except ValueError:
        supported = ", ".join(kind.value for kind in RopeKind)
        raise ModelError(f"rope type {name!r} is not supported; supported: {supported}") from None


def _yarn(params: Mapping[str, Any], original: int, max_positions: int) -> dict[str, Any]:
    defaults = {
        "factor": max_positions / original,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 0.0,
        "mscale_all_dim": 0.0,
    }
    numbers = {**defaults, **params}
    names = list(defaults)
    if "attention_factor" in params:
        names.append("attention_factor")
    read = {name: _number(numbers, name, RopeKind.YARN) for name in names}
    return {**read, "original_max_positions": original, "truncate": bool(params.get("truncate", True))}


def _number(params: Mapping[str, Any], name: str, kind: RopeKind) -> float:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"rope type {kind.value!r} needs a number {name!r}, got {value!r}")
    return float(value)


def _require(condition: bool, name: str, rule: str, value: float) -> None:
    if not condition:
        raise ModelError(f"{name} {rule}, got {value}")
