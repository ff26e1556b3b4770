"""Real engine processes without HTTP in front: one alone, and a pair that hands over by NIXL."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from baton.cluster.launch import model_launch
from baton.cluster.local import LocalEngine
from baton.core.exchange import TransferRecord
from baton.core.handoff import Handoff, PeerAddress, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta, TokenLogprobs
from baton.engine.handoff_options import HandoffOptions
from baton.engine.options import EngineOptions
from baton.wire.engine import Output
from tests.conftest import DEVICE

WAIT_S = 60.0
FLOAT32 = {"dtype": "float32", "device": DEVICE, "max_model_len": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sequence of a request."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...]
    num_cached_tokens: int
    error: str | None


@dataclass
class RunningEngine:
    """An engine process that takes requests; transfers: the hand-offs it posted, in order of their end."""

    local: LocalEngine
    transfers: list[TransferRecord] = field(default_factory=list)

    @property
    def address(self) -> PeerAddress:
        """Its control endpoint."""
        peer = self.local.client.info.peer
        assert peer is not None
        return PeerAddress(host=peer.host, port=peer.port, engine_id=peer.engine_id)

    def note(self, output: Output) -> None:
        """Keep what an Output says of transfers."""
        self.transfers += output.transfers

    async def run(self, request: Request) -> list[Answer]:
        """The request's sequences, in order."""
        stream = self.local.client.submit(request)
        deltas: dict[int, list[SequenceDelta]] = {index: [] for index in range(request.params.n)}
        async with asyncio.timeout(WAIT_S):
            async for delta in stream:
                deltas[delta.index].append(delta)
        return [_answer(each) for each in deltas.values()]

    async def idle(self) -> None:
        """Until every block is free again."""
        async with asyncio.timeout(WAIT_S):
            while True:
                stats = self.local.client.stats
                if stats.num_running == stats.num_waiting == stats.used_blocks == stats.pinned_blocks == 0:
                    return
                await asyncio.sleep(0.01)


def _answer(deltas: Sequence[SequenceDelta]) -> Answer:
    last = deltas[-1]
    assert last.finish_reason is not None
    return Answer(
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason,
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        num_cached_tokens=last.num_cached_tokens,
        error=last.error,
    )


@asynccontextmanager
async def running(model: Path, handoff: HandoffOptions | None = None, **options: Any) -> AsyncIterator[RunningEngine]:
    """An engine process for as long as the context lasts."""
    engine_options = EngineOptions(**{"model": str(model), **FLOAT32, **options})
    engine = RunningEngine(LocalEngine(model_launch(engine_options, handoff or HandoffOptions())))
    engine.local.client.on_output(engine.note)
    try:
        await engine.local.start()
        yield engine
    finally:
        await engine.local.stop()


@dataclass
class Pair:
    """A prefill and a decode engine, and how prompts cross. transfer_ids: by request id, of requests that were run."""

    prefill: RunningEngine
    decode: RunningEngine
    mode: str
    transfer_ids: dict[str, str] = field(default_factory=dict)

    async def run(self, request: Request) -> list[Answer]:
        """Prefill on one, decode on the other: both legs at once in push, one after the other in pull."""
        transfer_id = self.transfer_ids[request.request_id] = secrets.token_hex(16)
        mode = TransferMode(self.mode)
        give = replace(
            request,
            request_id=f"{request.request_id}-give",
            params=replace(request.params, max_tokens=1, min_tokens=min(request.params.min_tokens, 1)),
            handoff=Handoff(transfer_id=transfer_id),
        )
        take = replace(request, handoff=Handoff(transfer_id=transfer_id, source=self.prefill.address, mode=mode))
        if mode is TransferMode.PUSH:
            answers, _ = await asyncio.gather(self.decode.run(take), self.prefill.run(give))
            return answers
        await self.prefill.run(give)
        return await self.decode.run(take)

    def record(self, request_id: str) -> TransferRecord:
        """What the hand-off of a request cost the side that moved the bytes."""
        mover = self.prefill if self.mode == "push" else self.decode
        (record,) = [each for each in mover.transfers if each.transfer_id == self.transfer_ids[request_id]]
        return record


@asynccontextmanager
async def pair(
    model: Path,
    mode: str,
    *,
    handoff: dict[str, Any] | None = None,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Pair]:
    """Two engine processes. handoff: options of both; prefill, decode: engine options of one of them."""
    both = handoff or {}
    roles = (("prefill", prefill or {}), ("decode", decode or {}))
    async with together(
        [running(model, HandoffOptions(**{"role": role, **both}), **{**options, **own}) for role, own in roles]
    ) as (giver, taker):
        yield Pair(giver, taker, mode)


@asynccontextmanager
async def together(engines: Sequence[AbstractAsyncContextManager[RunningEngine]]) -> AsyncIterator[list[RunningEngine]]:
    """Several engines, which load at the same time."""
    async with AsyncExitStack() as stack:
        starting = [asyncio.create_task(engine.__aenter__()) for engine in engines]
        done = await asyncio.gather(*starting, return_exceptions=True)
        for engine, outcome in zip(engines, done, strict=True):
            if not isinstance(outcome, BaseException):
                stack.push_async_exit(engine)
        yield [await each for each in starting]
