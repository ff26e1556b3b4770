"""Pull: the giver offers what it has prefilled, the taker READs it on its transfer thread and says so."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.geometry import RankGeometry
from baton.transfer.agent import Direction
from baton.transfer.flights import Flights
from baton.transfer.giver import Giving
from baton.transfer.link import Control
from baton.transfer.moves import kv_moves
from baton.transfer.rank import GiverRank, Reader, TakerRank
from baton.transfer.taker import Taking, TransferError
from baton.wire.handoff import Offer


class Offerer:
    """A giver's connector: says where the KV is, once it is complete."""

    def __init__(self, rank: GiverRank, control: Control) -> None:
        self._rank = rank
        self._control = control

    def advance(self, giving: Giving) -> None:
        """Offer when prefill has ended."""
        grant, claim = giving.grant, giving.claim
        assert grant is not None and claim is not None
        if giving.last_posted or giving.first_tokens is None:
            return
        digests = {
            share.taker_rank: self._rank.digest(grant, share, claim.wanted.num_cached_tokens)
            for share in self._rank.shares(claim.link)
        }
        offer = Offer(
            transfer_id=giving.transfer_id,
            rank=self._rank.rank,
            block_ids=grant.block_ids,
            num_tokens=grant.num_tokens,
            first_tokens=giving.first_tokens,
            digests=digests,
        )
        self._control.send(claim.link.engine_id, offer)
        giving.last_posted = True


class Puller(TakerRank):
    """A taker's connector: one READ for each giver rank."""

    def __init__(
        self, rank: int, geometries: Sequence[RankGeometry], flights: Flights, read: Reader | None = None
    ) -> None:
        super().__init__(rank, geometries, read)
        self._flights = flights

    def fetch(self, taking: Taking, offer: Offer) -> bool:
        """Post the READ of a rank's share."""
        reserve, link = taking.reserve, taking.link
        assert reserve is not None and link is not None
        if offer.num_tokens != reserve.num_tokens:
            raise TransferError(f"{offer.num_tokens} tokens are offered, {reserve.num_tokens} were reserved")
        moves = kv_moves(
            link.card.ranks[offer.rank].geometry,
            self.geometry,
            self.share_from(link, offer.rank),
            offer.block_ids,
            reserve.block_ids,
            first_token=reserve.num_cached_tokens,
            last_token=reserve.num_tokens,
            taker_first_token=reserve.num_cached_tokens,
        )
        if len(moves):
            self._flights.post(taking.transfer_id, reserve.pin, Direction.READ, link.agents[offer.rank], moves)
        return len(moves) > 0
