"""A peer that shook hands: what the two sides of a transfer know of each other, and how they talk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton.wire.handoff import Card, FromGiver, FromTaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An incarnation of a peer that can be worked with.

    Attributes:
        card: what it says of itself.
        agents: name of each of its ranks' agents, for `Agent.post`.
    """

    card: Card
    agents: tuple[str, ...]

    @property
    def engine_id(self) -> str:
        """Of this incarnation."""
        return self.card.engine_id


class Control(Protocol):
    """The control channel as givers and takers see it. Neither method waits."""

    def send(self, engine_id: str, message: FromGiver | FromTaker) -> None:
        """Queue a message to a linked peer; without a link it is dropped."""

    def dial(self, host: str, port: int) -> None:
        """Make a link to the giver at this address, if there is none; `linked` or `unreachable` follows.

        With a link, `linked` is called at once, before this returns.
        """


class GiverPeers(Protocol):
    """What a giver is told about takers."""

    def taker_lost(self, engine_id: str, reason: str) -> None:
        """It has been silent for too long, or another incarnation took its place. It may come back when only silent."""

    def from_taker(self, link: Link, message: FromTaker) -> None:
        """An authentic message of a linked taker (never Hello)."""


class TakerPeers(Protocol):
    """What a taker is told about givers."""

    def linked(self, host: str, port: int, link: Link) -> None:
        """There is a link to this address. After a silence the same incarnation links again."""

    def unreachable(self, host: str, port: int, reason: str, *, refused: bool) -> None:
        """No link could be made. refused: the two engines cannot work together."""

    def giver_lost(self, engine_id: str, reason: str, *, dead: bool) -> None:
        """It has been silent for too long (it may come back), or is known to have ended (dead)."""

    def from_giver(self, link: Link, message: FromGiver) -> None:
        """An authentic message of a linked giver (never Welcome, Refusal or Pulse), or the Done of a notice."""
