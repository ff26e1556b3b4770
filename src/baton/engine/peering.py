"""Gives a loaded engine its peers: a transfer thread over its KV pool, and the word about where it can be reached."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping

import torch

from baton.core.errors import ConfigError
from baton.core.handoff import Role
from baton.engine.handoff_options import PEER_SECRET, HandoffOptions
from baton.engine.load import LoadedRunner
from baton.engine.storage import kv_geometry, kv_reader
from baton.text.tokenizer import Tokenizer
from baton.transfer.agent import AgentError
from baton.transfer.assembly import Station, assemble
from baton.transfer.card import model_facts
from baton.transfer.giver import GiverConfig
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.taker import TakerConfig
from baton.transfer.worker import TransferParts, TransferWorker
from baton.wire.engine import PeerInfo


class StartTransfer:
    """Starts the transfer thread. It must be called once, by the thread that runs the engine loop."""

    def __init__(self, parts: TransferParts, device: torch.device) -> None:
        self._parts = parts
        self._device = device

    def __call__(self, wake_engine: Callable[[], None]) -> TransferWorker:
        """wake_engine: called on the transfer thread when there are events to take."""
        return TransferWorker(self._parts, wake_engine, self._prepare)

    def _prepare(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)


def served_facts(loaded: LoadedRunner, tokenizer: Tokenizer | None) -> dict[str, str]:
    """What another engine must have in common with this one to share its KV."""
    return model_facts(
        loaded.config,
        dtype=loaded.dtype,
        kv_dtype=loaded.dtype,
        tokenizer_digest=_tokenizer_digest(tokenizer),
        weights_digest=loaded.weights_digest,
    )


def facts_digest(facts: Mapping[str, str]) -> str:
    """32 hex digits for all facts together: those of two engines are equal if their facts are."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def open_peering(
    options: HandoffOptions, loaded: LoadedRunner, facts: dict[str, str], engine_id: str
) -> tuple[StartTransfer, PeerInfo]:
    """Register the pool, open the control endpoint.

    Args:
        facts: as `served_facts` gives them.
        engine_id: of this incarnation.

    Returns:
        (what starts the transfer thread, how others reach this engine)

    Raises:
        ConfigError: the endpoint's address cannot be had, NIXL is missing, or memory cannot be registered.
    """
    assert options.role is not None
    role = Role(options.role)
    secret = os.environ.get(PEER_SECRET)
    kv, layout = loaded.kv, loaded.layout
    station = Station(
        engine_id=engine_id,
        role=role,
        modes=options.transfer_modes,
        facts=facts,
        bind_host=options.side_channel_host,
        bind_port=options.side_channel_port,
        advertised_host=options.advertise_host or options.side_channel_host,
        secret=secret.encode() if secret else None,
        geometry=kv_geometry(kv, layout),
        device=kv.device.index if kv.is_cuda else None,
        read=kv_reader(kv) if options.verify_handoff else None,
        giver=GiverConfig(lease_s=options.handoff_lease_s),
        taker=TakerConfig(timeout_s=options.handoff_timeout_s),
    )
    if kv.is_cuda:
        torch.cuda.set_device(kv.device)  # NIXL registers memory of the context that is current in this thread
    try:
        parts, card = assemble(station, NixlAgent(engine_id, options.nixl_backends or ("UCX",), gpu=kv.is_cuda))
    except AgentError as error:
        raise ConfigError(f"the KV cache cannot be opened to other engines: {error}") from error
    info = PeerInfo(
        role=role, transfer_modes=options.transfer_modes, engine_id=engine_id, host=card.host, port=card.port
    )
    return StartTransfer(parts, kv.device), info


def _tokenizer_digest(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return "none"
    text: str = tokenizer.backend.to_str()
    return hashlib.sha256(text.encode()).hexdigest()[:16]
