"""Push: the giver WRITEs full blocks while prefill runs, and the rest, with Done, when it has ended."""

from __future__ import annotations

from collections.abc import Callable

from baton.transfer.agent import Agent, Direction
from baton.transfer.flights import Flights
from baton.transfer.giver import Giving
from baton.transfer.link import Link
from baton.transfer.mapping import Share
from baton.transfer.moves import kv_moves
from baton.transfer.rank import GiverRank
from baton.wire.handoff import Done


class Pusher:
    """A giver's connector. One WRITE a transfer and taker rank is in flight at a time, so Done comes after all bytes.

    Args:
        seal_notice: makes a Done for an engine into the payload of a notice.
    """

    def __init__(
        self, rank: GiverRank, agent: Agent, flights: Flights, seal_notice: Callable[[str, Done], bytes]
    ) -> None:
        self._rank = rank
        self._agent = agent
        self._flights = flights
        self._seal_notice = seal_notice

    def advance(self, giving: Giving) -> None:
        """Post what is final and was not posted."""
        assert giving.grant is not None and giving.claim is not None
        if giving.last_posted or self._flights.pins(giving.transfer_id):
            return
        link, last = giving.claim.link, giving.first_tokens is not None
        end = giving.grant.num_tokens if last else self._whole_blocks(giving.num_final_tokens, link)
        if not last and end <= giving.posted_tokens:
            return
        before = self._flights.cost(giving.transfer_id).num_bytes
        for share in self._rank.shares(link):
            self._post(giving, share, end, last=last)
        if not last:
            giving.early_bytes += self._flights.cost(giving.transfer_id).num_bytes - before
        giving.posted_tokens = max(giving.posted_tokens, end)
        giving.last_posted = last

    def _post(self, giving: Giving, share: Share, end: int, *, last: bool) -> None:
        grant, claim = giving.grant, giving.claim
        assert grant is not None and claim is not None
        moves = kv_moves(
            self._rank.geometry,
            claim.link.card.ranks[share.taker_rank].geometry,
            share,
            grant.block_ids,
            claim.wanted.block_ids,
            first_token=giving.posted_tokens,
            last_token=end,
            taker_first_token=claim.wanted.num_cached_tokens,
        )
        agent = claim.link.agents[share.taker_rank]
        notice = self._seal_notice(claim.link.engine_id, self._done(giving, share)) if last else None
        if len(moves):
            self._flights.post(giving.transfer_id, grant.pin, Direction.WRITE, agent, moves, notice)
        elif notice is not None:
            self._agent.notify(agent, notice)

    def _done(self, giving: Giving, share: Share) -> Done:
        grant, claim = giving.grant, giving.claim
        assert grant is not None and claim is not None and giving.first_tokens is not None
        return Done(
            transfer_id=giving.transfer_id,
            rank=self._rank.rank,
            num_tokens=grant.num_tokens,
            first_tokens=giving.first_tokens,
            digest=self._rank.digest(grant, share, claim.wanted.num_cached_tokens),
        )

    def _whole_blocks(self, num_tokens: int, link: Link) -> int:
        """Of these tokens, those in full blocks on both sides: one block size divides the other."""
        size = max(self._rank.geometry.block_tokens, *(rank.geometry.block_tokens for rank in link.card.ranks))
        return num_tokens // size * size
