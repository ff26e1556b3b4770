"""What engines show each other, and whether two of them can work together."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum

import msgspec

from baton.core.handoff import Role, TransferMode
from baton.core.model_config import ModelConfig
from baton.transfer.mapping import GeometryError, map_ranks
from baton.wire.decoder import Decoder
from baton.wire.handoff import Card, Identity, Refusal

_NOT_GIVEN = "not given"
_MAX_SHOWN = 200  # characters of a peer's word in a log or an error
_MAX_ID = 128  # characters
_MAX_HOST = 255
_MAX_RANKS = 512
_NOT_OF_KV = ("dtype", "eos_token_ids", "bos_token_id", "initializer_range", "max_position_embeddings")


def model_facts(
    config: ModelConfig, *, dtype: str, kv_dtype: str, tokenizer_digest: str, weights_digest: str
) -> dict[str, str]:
    """What decides the values of a token's KV, one fact each; two engines that differ in one must not exchange KV.

    Args:
        dtype: number format the model is served in.
        kv_dtype: of the cache.
        tokenizer_digest: of what maps text to token ids.
        weights_digest: of the checkpoint's values.
    """
    facts = {name: _as_text(value) for name, value in asdict(config).items() if name not in _NOT_OF_KV}
    return facts | {"dtype": dtype, "kv_dtype": kv_dtype, "tokenizer": tokenizer_digest, "weights": weights_digest}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=_enum_value)


def _enum_value(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value


def compare_identities(giver: Identity, taker: Identity) -> Refusal | None:
    """The first difference, or None: protocol version, transfer modes, facts by name. A missing fact differs."""
    if giver.protocol_version != taker.protocol_version:
        return refusal("protocol version", giver.protocol_version, taker.protocol_version)
    if not set(giver.transfer_modes) & set(taker.transfer_modes):
        return refusal("transfer mode", _names(giver.transfer_modes), _names(taker.transfer_modes))
    for name in sorted(giver.facts.keys() | taker.facts.keys()):
        one, other = giver.facts.get(name), taker.facts.get(name)
        if one != other:
            return refusal(shown(name), _NOT_GIVEN if one is None else one, _NOT_GIVEN if other is None else other)
    return None


def _names(modes: Sequence[TransferMode]) -> str:
    return ", ".join(mode.value for mode in modes) or "none"


def compare_cards(giver: Card, taker: Card) -> Refusal | None:
    """Why these two cannot work together as giver and taker, or None: incarnation, roles, ranks, geometry."""
    if giver.engine_id == taker.engine_id:
        return refusal("engine_id (an engine cannot take from itself)", giver.engine_id, taker.engine_id)
    if giver.role is Role.DECODE or taker.role is Role.PREFILL:
        return refusal("role", giver.role.value, taker.role.value)
    if not (_has_its_ranks(giver) and _has_its_ranks(taker)):
        return refusal("tp_size * pp_size", _ranks(giver), _ranks(taker))
    try:
        map_ranks([rank.geometry for rank in giver.ranks], [rank.geometry for rank in taker.ranks])
    except GeometryError as error:
        return refusal(error.field, error.giver, error.taker)
    return None


def _has_its_ranks(card: Card) -> bool:
    return card.tp_size >= 1 and card.pp_size >= 1 and card.tp_size * card.pp_size == len(card.ranks) <= _MAX_RANKS


def _ranks(card: Card) -> str:
    return f"{card.tp_size} * {card.pp_size} with {len(card.ranks)} ranks"


def refusal(field: str, giver: object, taker: object) -> Refusal:
    """A refusal with values cut to what a log line bears."""
    return Refusal(field=field, giver=shown(giver), taker=shown(taker))


def refusal_text(refused: Refusal) -> str:
    """One line for logs and clients; the refusal may be a peer's word."""
    field, giver, taker = (shown(text) for text in (refused.field, refused.giver, refused.taker))
    return f"{field}: giver has {giver}, taker has {taker}"


def shown(value: object) -> str:
    """A peer's word, fit for a log: printable, and not long."""
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value)[: _MAX_SHOWN + 1]
    )
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


class Judge:
    """Decides whether others can work with this engine.

    Args:
        me, card: of this engine.
    """

    def __init__(self, me: Identity, card: Card) -> None:
        self.me = me
        self.card = card
        self.card_bytes = msgspec.msgpack.encode(card)
        self._decoder = Decoder(Card)

    def taker(self, identity: Identity, card: bytes) -> Card | Refusal | None:
        """Whether this engine can give to that one: its card, or why not; None: that is no card."""
        return compare_identities(self.me, identity) or self._judged(card, gives=True)

    def giver(self, identity: Identity, card: bytes) -> Card | Refusal | None:
        """Whether this engine can take from that one: its card, or why not; None: that is no card."""
        return compare_identities(identity, self.me) or self._judged(card, gives=False)

    def _judged(self, data: bytes, *, gives: bool) -> Card | Refusal | None:
        card: Card | None = self._decoder.decode(data)
        if card is None or not _is_plausible(card):
            return None
        return (compare_cards(self.card, card) if gives else compare_cards(card, self.card)) or card


def _is_plausible(card: Card) -> bool:
    return (
        0 < len(card.engine_id) <= _MAX_ID
        and 0 < len(card.host) <= _MAX_HOST
        and 0 < card.port < 2**16
        and 0 < card.lease_s < math.inf
    )
