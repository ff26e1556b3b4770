"""One rank of this engine as giver or taker: which shares it has with a peer's ranks, and their digests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton.core.exchange import Grant
from baton.core.geometry import RankGeometry
from baton.transfer.digest import kv_digest
from baton.transfer.link import Link
from baton.transfer.mapping import Share, givers_of, map_ranks, shares_from, shares_to
from baton.transfer.taker import Taking, TransferError
from baton.wire.handoff import Offer

Reader = Callable[[int, int], bytes | memoryview]
"""Bytes at (address, length) of this rank's memory."""


class _Rank:
    """One rank of this engine.

    Args:
        rank: of this worker.
        geometries: of all ranks of this engine, in order.
        read: for digests; None: none are made or compared.
    """

    def __init__(self, rank: int, geometries: Sequence[RankGeometry], read: Reader | None = None) -> None:
        self.rank = rank
        self._geometries = tuple(geometries)
        self._read = read

    @property
    def geometry(self) -> RankGeometry:
        """Of this rank."""
        return self._geometries[self.rank]


class GiverRank(_Rank):
    """What both givers' connectors need."""

    def shares(self, link: Link) -> tuple[Share, ...]:
        """What this rank sends to a taker; none if another rank with the same heads stands in for it."""
        return shares_from(map_ranks(self._geometries, _geometries(link)), self.rank)

    def digest(self, grant: Grant, share: Share, first_token: int) -> bytes | None:
        """Of the tokens that the taker lacks, from first_token on; None without digests."""
        if self._read is None:
            return None
        return kv_digest(
            self._read, self.geometry, share, grant.block_ids, first_token=first_token, last_token=grant.num_tokens
        )


class TakerRank(_Rank):
    """What both takers' connectors share."""

    def sources(self, link: Link) -> frozenset[int]:
        """Giver ranks that this rank gets bytes from."""
        return givers_of(map_ranks(_geometries(link), self._geometries), self.rank)

    def share_from(self, link: Link, giver_rank: int) -> Share:
        """What a giver rank holds for this rank."""
        shares = shares_to(map_ranks(_geometries(link), self._geometries), self.rank)
        return next(share for share in shares if share.giver_rank == giver_rank)

    def digest_of(self, offer: Offer) -> bytes | None:
        """The digest of what this rank is to read; None if there is none."""
        return offer.digests.get(self.rank)

    def verify(self, taking: Taking, rank: int) -> None:
        """Compare the digest that a giver rank sent with what has landed from it.

        Raises:
            TransferError: they differ, or none was sent.
        """
        reserve, link, sent = taking.reserve, taking.link, taking.digests[rank]
        if self._read is None:
            return
        assert reserve is not None and link is not None
        if sent is None:
            raise TransferError(f"the giver {link.engine_id} sends no digests; start it with --verify-handoff")
        landed = kv_digest(
            self._read,
            self.geometry,
            self.share_from(link, rank),
            reserve.block_ids,
            first_token=reserve.num_cached_tokens,
            last_token=reserve.num_tokens,
            blocks_first_token=reserve.num_cached_tokens,
        )
        if landed != sent:
            raise TransferError(f"what landed from rank {rank} of {link.engine_id} has another digest than was sent")


def _geometries(link: Link) -> list[RankGeometry]:
    return [rank.geometry for rank in link.card.ranks]
