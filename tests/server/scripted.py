"""An engine that says what a test tells it to, over the real socket: for what a stub engine does not do by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from baton.core.handoff import Role, TransferMode
from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.stats import EMPTY
from baton.server.engine_client import EngineClient
from baton.wire.channel import EngineSocket
from baton.wire.engine import Cancel, EngineInfo, FromEngine, Output, PeerInfo, Ready, Stop, Submit, Withdraw
from tests.server.harness import VOCAB

Script = Callable[[Request], Iterable[FromEngine]]
NOW = 1_700_000_000.0


def peer_info(role: Role = Role.MIXED, *modes: TransferMode) -> PeerInfo:
    """modes: by default all."""
    able = modes or tuple(TransferMode)
    return PeerInfo(role=role, transfer_modes=able, engine_id=f"engine-{role.value}", host="10.0.0.7", port=5600)


def engine_info(peer: PeerInfo | None, tokenizer: str = "") -> EngineInfo:
    return EngineInfo(
        model="scripted",
        tokenizer=tokenizer,
        architecture="stub",
        dtype="none",
        device="none",
        fingerprint="",
        eos_token_ids=frozenset(),
        vocab_size=VOCAB,
        max_model_len=2048,
        max_num_seqs=8,
        block_tokens=16,
        num_blocks=128,
        peer=peer,
    )


def output(*deltas: SequenceDelta, at: float = 0.0, **fields: object) -> Output:
    """A step committed `at` seconds after NOW."""
    return Output(deltas=deltas, stats=EMPTY, time_s=NOW + at, num_tokens=1, **fields)  # type: ignore[arg-type]


def tokens(request: Request, index: int = 0, count: int | None = None) -> SequenceDelta:
    """All tokens of a sequence at once (72 is "i"), and its end."""
    count = request.params.max_tokens if count is None else count
    assert count is not None
    return SequenceDelta(
        request_id=request.request_id, index=index, token_ids=(72,) * count, finish_reason=FinishReason.LENGTH
    )


class ScriptedEngine:
    """Has the verbs of a LocalEngine. Each request is answered by what the script makes of it.

    Attributes:
        requests: in order of arrival.
        cancels: what the server ended.
        given_up: ids of hand-offs that nobody will come for.
    """

    def __init__(self, info: EngineInfo, script: Script) -> None:
        self.client = EngineClient()
        self.requests: list[Request] = []
        self.cancels: list[Cancel] = []
        self.given_up: list[str] = []
        self.news = threading.Condition()
        self._info = info
        self._script = script
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        self._thread = threading.Thread(target=self._run, args=(self.client.listen(),), daemon=True)
        self._thread.start()
        await self.client.start()

    async def stop(self) -> None:
        await self.client.close()
        assert self._thread is not None
        self._thread.join(10)

    def _run(self, address: str) -> None:
        socket = EngineSocket(address)
        socket.send(Ready(info=self._info))
        stopped = False
        while not stopped:
            socket.wait(0.5)
            for message in socket.drain():
                stopped = stopped or isinstance(message, Stop)
                with self.news:
                    if isinstance(message, Submit):
                        self.requests.append(message.request)
                    elif isinstance(message, Cancel):
                        self.cancels.append(message)
                    elif isinstance(message, Withdraw):
                        self.given_up.append(message.transfer_id)
                    self.news.notify_all()
                if isinstance(message, Submit):
                    for said in self._script(message.request):
                        socket.send(said)
        socket.close()
