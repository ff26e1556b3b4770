"""Memory that an agent may move bytes from and to, and the metadata that tells peers of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.transfer.agent import AgentError

DIGEST_BYTES = 16


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """Registered memory: bytes [address, address + num_bytes). device: GPU number; None: host memory."""

    address: int
    num_bytes: int
    device: int | None


class AgentCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a peer needs to reach an agent.

    Attributes:
        kind: of agent; two kinds cannot reach each other.
        name: of the agent, unique among all agents that ever meet.
        regions: memory that peers may name.
        backend: what the back end itself needs.
    """

    kind: str
    name: str
    regions: tuple[Region, ...]
    backend: bytes = b""


class Regions:
    """The registered memory of one agent. Regions do not overlap; a range never spans two of them."""

    def __init__(self, regions: Iterable[Region] = ()) -> None:
        self._regions: list[Region] = []
        for region in regions:
            self.add(region)

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions)

    def add(self, region: Region) -> None:
        """Take one more.

        Raises:
            AgentError: it is empty, or overlaps another.
        """
        end = region.address + region.num_bytes
        if region.num_bytes <= 0 or region.address <= 0:
            raise AgentError(f"memory to register must not be empty, got {region.num_bytes} bytes at {region.address}")
        if any(region.address < r.address + r.num_bytes and r.address < end for r in self._regions):
            raise AgentError(f"memory at {region.address:#x} ({region.num_bytes} bytes) is registered already")
        self._regions = sorted([*self._regions, region], key=lambda r: r.address)

    def device_of(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> int | None:
        """The device that all of the ranges [address, address + length) lie on.

        Args:
            addresses, lengths: [N], N >= 1.

        Raises:
            AgentError: a range is empty or not inside one region, or they lie on several devices.
        """
        if not self._regions:
            raise AgentError("no memory is registered")
        starts = np.array([region.address for region in self._regions], np.int64)
        sizes = np.array([region.num_bytes for region in self._regions], np.int64)
        index = np.searchsorted(starts, addresses, side="right") - 1
        offset = addresses - starts[index]
        inside = (index >= 0) & (lengths > 0) & (lengths <= sizes[index]) & (offset <= sizes[index] - lengths)
        if not inside.all():
            row = int(np.argmin(inside))
            raise AgentError(f"{lengths[row]} bytes at {addresses[row]:#x} are not inside registered memory")
        devices = {self._regions[int(i)].device for i in np.unique(index)}
        if len(devices) > 1:
            raise AgentError(f"one transfer names memory of several devices: {sorted(map(str, devices))}")
        (device,) = devices
        return device


def pack_card(card: AgentCard) -> bytes:
    """Metadata: a digest and the card in msgpack. The digest keeps damaged metadata from the back end."""
    body = msgspec.msgpack.encode(card)
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() + body


def unpack_card(metadata: bytes, kind: str) -> AgentCard:
    """The card in a peer's metadata.

    Raises:
        AgentError: it is damaged, or of another kind of agent.
    """
    digest, body = metadata[:DIGEST_BYTES], metadata[DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise AgentError(f"these {len(metadata)} bytes are not an agent's metadata, or were damaged on their way")
    try:
        card = msgspec.msgpack.decode(body, type=AgentCard)
    except msgspec.MsgspecError as error:
        raise AgentError(f"metadata of an unknown form: {error}") from error
    if card.kind != kind:
        raise AgentError(f"the peer's agent is of kind {card.kind!r}, this one of kind {kind!r}: use the same on both")
    return card
