"""Which giver rank sends which heads and layers to which taker rank; refuses pairs that cannot work, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from baton.core.errors import BatonError
from baton.core.geometry import RankGeometry

_POSITIVE = ("num_blocks", "block_tokens", "num_heads", "num_layers", "head_dim", "dtype_bytes")
_NOT_NEGATIVE = ("base_address", "first_head", "first_layer")
_ADDRESS_LIMIT = 2**63


class GeometryError(BatonError):
    """Two engines cannot hand over KV.

    Args:
        field: what does not fit.
        giver: its value on the giver's side, as text; distinct values of several ranks are joined by commas.
        taker: the same on the taker's side.
    """

    def __init__(self, field: str, giver: str, taker: str) -> None:
        super().__init__(f"{field}: giver has {giver}, taker has {taker}")
        self.field = field
        self.giver = giver
        self.taker = taker


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one giver rank sends to one taker rank; heads and layers are numbered over the whole model."""

    giver_rank: int
    taker_rank: int
    first_head: int
    num_heads: int
    first_layer: int
    num_layers: int


class _Part(NamedTuple):
    """Heads x layers of the model."""

    heads: range
    layers: range

    @property
    def size(self) -> int:
        return len(self.heads) * len(self.layers)


def map_ranks(givers: Sequence[RankGeometry], takers: Sequence[RankGeometry]) -> tuple[Share, ...]:
    """Every head and layer of every taker rank from exactly one giver rank; at most one share for a pair of ranks.

    Both sides compute the same from the two cards. A part that several giver ranks hold (more ranks than KV heads) is
    sent by the one that has the least to send so far.

    Args:
        givers, takers: geometry by rank.

    Raises:
        GeometryError: element sizes differ, neither block size divides the other, a taker rank holds a head or layer
            that no giver rank holds, giver ranks overlap in part, or a value is out of range.
    """
    _check_values(givers, takers)
    _check_elements(givers, takers)
    owners = _owners(givers, takers)
    load: Counter[int] = Counter()
    shares: list[Share] = []
    for taker_rank, taker in enumerate(takers):
        wanted = _part_of(taker)
        missing = wanted.size
        for part, ranks in owners.items():
            common = _intersection(part, wanted)
            if not common.size:
                continue
            missing -= common.size
            giver_rank = min(ranks, key=lambda rank: load[rank])
            load[giver_rank] += common.size
            shares.append(_share(giver_rank, taker_rank, common))
        if missing:
            raise _not_held(owners, wanted)
    return tuple(shares)


def shares_from(shares: Sequence[Share], giver_rank: int) -> tuple[Share, ...]:
    """What this giver rank sends; empty for a replica that others stand in for."""
    return tuple(share for share in shares if share.giver_rank == giver_rank)


def shares_to(shares: Sequence[Share], taker_rank: int) -> tuple[Share, ...]:
    """What this taker rank gets."""
    return tuple(share for share in shares if share.taker_rank == taker_rank)


def givers_of(shares: Sequence[Share], taker_rank: int) -> frozenset[int]:
    """Giver ranks that a taker rank must hear from before its part is complete."""
    return frozenset(share.giver_rank for share in shares_to(shares, taker_rank))


def _check_values(givers: Sequence[RankGeometry], takers: Sequence[RankGeometry]) -> None:
    """A card is a peer's word: sizes must be sizes, and every address must fit into 63 bits."""
    for rank in (*givers, *takers):
        for name in _POSITIVE:
            if getattr(rank, name) < 1:
                raise _differ(name, givers, takers)
        for name in _NOT_NEGATIVE:
            if getattr(rank, name) < 0:
                raise _differ(name, givers, takers)
        if rank.base_address + rank.num_blocks * rank.block_bytes >= _ADDRESS_LIMIT:
            raise _differ("base_address", givers, takers)


def _check_elements(givers: Sequence[RankGeometry], takers: Sequence[RankGeometry]) -> None:
    for name in ("head_dim", "dtype_bytes"):
        if len({getattr(rank, name) for rank in (*givers, *takers)}) > 1:
            raise _differ(name, givers, takers)
    for giver_tokens in {rank.block_tokens for rank in givers}:
        for taker_tokens in {rank.block_tokens for rank in takers}:
            if giver_tokens % taker_tokens and taker_tokens % giver_tokens:
                raise _differ("block_tokens", givers, takers)


def _differ(field: str, givers: Sequence[RankGeometry], takers: Sequence[RankGeometry]) -> GeometryError:
    values = (sorted({getattr(rank, field) for rank in side}) for side in (givers, takers))
    return GeometryError(field, *(",".join(map(str, side)) or "none" for side in values))


def _owners(givers: Sequence[RankGeometry], takers: Sequence[RankGeometry]) -> dict[_Part, list[int]]:
    """Giver ranks by the part they hold; different parts are disjoint, so that each cell has one place."""
    owners: dict[_Part, list[int]] = {}
    for rank, giver in enumerate(givers):
        owners.setdefault(_part_of(giver), []).append(rank)
    for one, other in combinations(owners, 2):
        if _intersection(one, other).size:
            raise GeometryError("KV heads", f"overlapping {_parts([one, other])}", _parts(map(_part_of, takers)))
    return owners


def _not_held(owners: Iterable[_Part], wanted: _Part) -> GeometryError:
    """Names the axis on which the givers fall short of `wanted`."""
    heads, layers = [part.heads for part in owners], [part.layers for part in owners]
    if not _covers(heads, wanted.heads):
        return GeometryError("KV heads", _spans(heads), _spans([wanted.heads]))
    if not _covers(layers, wanted.layers):
        return GeometryError("layers", _spans(layers), _spans([wanted.layers]))
    return GeometryError("KV heads", _parts(owners), _parts([wanted]))


def _covers(ranges: Iterable[range], wanted: range) -> bool:
    reached = wanted.start
    for one in sorted(ranges, key=lambda r: r.start):
        if one.start <= reached:
            reached = max(reached, one.stop)
    return reached >= wanted.stop


def _part_of(rank: RankGeometry) -> _Part:
    return _Part(
        range(rank.first_head, rank.first_head + rank.num_heads),
        range(rank.first_layer, rank.first_layer + rank.num_layers),
    )


def _intersection(one: _Part, other: _Part) -> _Part:
    return _Part(*(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)))


def _share(giver_rank: int, taker_rank: int, part: _Part) -> Share:
    return Share(
        giver_rank=giver_rank,
        taker_rank=taker_rank,
        first_head=part.heads.start,
        num_heads=len(part.heads),
        first_layer=part.layers.start,
        num_layers=len(part.layers),
    )


def _spans(ranges: Iterable[range]) -> str:
    """Like "0-3,4-7", both ends included; "none" for no ranges."""
    spans = sorted({(one.start, one.stop - 1) for one in ranges})
    return ",".join(f"{first}-{last}" for first, last in spans) or "none"


def _parts(parts: Iterable[_Part]) -> str:
    """Like "0-3 of layers 0-13,4-7 of layers 0-13"; "none" for no parts."""
    texts = (f"{_spans([part.heads])} of layers {_spans([part.layers])}" for part in dict.fromkeys(parts))
    return ",".join(texts) or "none"
