"""From a share, two block lists and a token range to descriptors: which bytes go where, in as few runs as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import BatonError
from baton.core.geometry import RankGeometry
from baton.transfer.agent import Moves
from baton.transfer.mapping import Share

_Ints = NDArray[np.int64]


class BlocksError(BatonError):
    """A block list, mostly a peer's, cannot be what it is said to be: too short, or with blocks outside the pool."""


def kv_moves(
    giver: RankGeometry,
    taker: RankGeometry,
    share: Share,
    giver_blocks: Sequence[int],
    taker_blocks: Sequence[int],
    *,
    first_token: int,
    last_token: int,
    taker_first_token: int = 0,
) -> Moves:
    """Descriptors that bring tokens [first_token, last_token) of a share from giver to taker.

    Tokens before taker_first_token are at the taker already and are left out. With equal block sizes whole blocks move:
    one descriptor a block (when both ranks hold the same layers, or for each head), and the last block is moved to its
    end, because what follows the last token there belongs to nobody. So last_token is either the end of the prompt or a
    multiple of the giver's block size; anything else is correct, but moves that rest of a block again later.

    Args:
        giver_blocks: block ids of tokens [0, ...), in order.
        taker_blocks: block ids of tokens [taker_first_token, ...), in order.
        taker_first_token: a multiple of the taker's block size, unless the range is empty.

    Returns:
        [N, 3] of giver address, taker address, bytes, by giver address; [0, 3] for no tokens. Rows that touch on both
        sides are merged.

    Raises:
        BlocksError: a list does not reach last_token or names a block outside its pool, or taker_first_token is amiss.
    """
    first = max(first_token, taker_first_token)
    if first >= last_token and taker_first_token >= 0:
        return np.empty((0, 3), np.int64)
    assert first_token >= 0, first_token
    if taker_first_token < 0 or taker_first_token % taker.block_tokens:
        raise BlocksError(
            f"taker blocks from token {taker_first_token} on: not at a block of {taker.block_tokens} tokens"
        )
    _check_reach(giver, giver_blocks, 0, last_token, "giver")
    _check_reach(taker, taker_blocks, taker_first_token, last_token, "taker")
    tokens, counts = _token_runs(first, last_token, giver.block_tokens, taker.block_tokens)
    sources = _places(giver, giver_blocks, 0, tokens, "giver")
    targets = _places(taker, taker_blocks, taker_first_token, tokens, "taker")
    whole = (counts == giver.block_tokens) & (giver.block_tokens == taker.block_tokens)
    source_offsets, target_offsets = _offsets(giver, share), _offsets(taker, share)
    # In a whole block all planes of a head are one run. Heads that touch on both sides merge below.
    rows = [
        _rows(
            sources[runs],
            targets[runs],
            source_offsets[planes],
            target_offsets[planes],
            counts[runs] * (planes_of_run * giver.token_bytes),
        )
        for runs, planes, planes_of_run in (
            (whole, np.s_[:, :1, :1], share.num_layers * 2),
            (~whole, np.s_[:, :, :], 1),
        )
    ]
    return _merged(np.concatenate(rows))


def num_bytes(moves: Moves) -> int:
    """Bytes that moves carry; up to a block's end more than the tokens' own where a last block is moved whole."""
    return int(moves[:, 2].sum())


def _token_runs(first: int, last: int, giver_tokens: int, taker_tokens: int) -> tuple[_Ints, _Ints]:
    """First tokens and lengths of the runs that lie in one block on both sides."""
    step = min(giver_tokens, taker_tokens)
    last_block = (last - 1) // step * step
    if giver_tokens == taker_tokens:
        last = last_block + step
    cuts = np.arange(first // step + 1, last_block // step + 1, dtype=np.int64) * step
    starts = np.concatenate(([first], cuts))
    return starts, np.diff(starts, append=last)


def _check_reach(rank: RankGeometry, blocks: Sequence[int], list_first: int, last: int, side: str) -> None:
    if list_first + len(blocks) * rank.block_tokens < last:
        raise BlocksError(
            f"{len(blocks)} {side} blocks of {rank.block_tokens} tokens from token {list_first} on do not reach {last}"
        )


def _places(rank: RankGeometry, blocks: Sequence[int], list_first: int, tokens: _Ints, side: str) -> _Ints:
    """Address of each token's place in the first plane (head, layer, K) of its block."""
    try:
        ids = np.asarray(blocks, dtype=np.int64)[(tokens - list_first) // rank.block_tokens]
    except OverflowError:
        raise BlocksError(f"{side} block ids beyond 64 bits") from None
    if ids.min() < 0 or ids.max() >= rank.num_blocks:
        raise BlocksError(f"{side} blocks {ids.min()} to {ids.max()} are not all within its {rank.num_blocks} blocks")
    return rank.base_address + ids * rank.block_bytes + tokens % rank.block_tokens * rank.token_bytes


def _offsets(rank: RankGeometry, share: Share) -> _Ints:
    """[heads, layers, 2]: where each plane of the share starts in a block of this rank, in bytes."""
    plane_bytes = rank.block_tokens * rank.token_bytes
    heads = np.arange(share.num_heads) + (share.first_head - rank.first_head)
    planes = np.arange(share.num_layers * 2).reshape(-1, 2) + 2 * (share.first_layer - rank.first_layer)
    return heads[:, None, None] * rank.head_bytes + planes * plane_bytes


def _rows(sources: _Ints, targets: _Ints, source_offsets: _Ints, target_offsets: _Ints, run_bytes: _Ints) -> Moves:
    """A row for every plane of every run. sources, targets, run_bytes: [runs]; offsets: [heads, layers, 2]."""
    from_, to = (np.add.outer(a, b).ravel() for a, b in ((sources, source_offsets), (targets, target_offsets)))
    return np.column_stack((from_, to, np.repeat(run_bytes, source_offsets.size)))


def _merged(moves: Moves) -> Moves:
    """Rows by source address; those that touch on both sides become one, in whatever order they stood."""
    moves = moves[np.argsort(moves[:, 0])]
    ends = moves[:-1, :2] + moves[:-1, 2:]
    first = np.concatenate(([0], 1 + np.flatnonzero((moves[1:, :2] != ends).any(axis=1))))
    return np.column_stack((moves[first, :2], np.add.reduceat(moves[:, 2], first)))
