"""The engine process: takes requests from its socket, runs the loop, sends what each step brought.

python -m baton.engine.process --channel ADDRESS --parent PID --options JSON
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

import msgspec

from baton.core.errors import EngineDeadError, RequestError, UserError
from baton.core.exchange import Event, Landed, Settled, TransferRecord
from baton.core.exchange import Failed as HandoffFailed
from baton.core.request import Request, SequenceDelta
from baton.core.stats import SchedulerStats, TransferStats
from baton.core.step import Step
from baton.engine.engine import Engine
from baton.engine.handoff_options import NO_PEERS, HandoffOptions
from baton.engine.options import EngineOptions
from baton.obs.log import get_logger, show_logs
from baton.transfer.card import shown
from baton.wire.channel import EngineSocket
from baton.wire.engine import (
    Admitted,
    Cancel,
    EngineInfo,
    Failed,
    Moment,
    Output,
    Ping,
    Pong,
    Ready,
    Refused,
    Stop,
    Submit,
    ToEngine,
    Withdraw,
    moment_of,
)

if TYPE_CHECKING:
    from baton.transfer.worker import TransferWorker

_log = get_logger("baton.engine.process")
_IDLE_S = 0.5  # between looks at the parent while nothing happens
_COMPILE_THREADS = 2
_PRIMITIVES = "128"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEngine:
    """An engine to run.

    Attributes:
        check: raises RequestError for a request that it cannot run; may take seconds when the request has a grammar.
        start_transfer: starts the transfer thread, given what wakes the loop; None: no peers.
    """

    engine: Engine
    info: EngineInfo
    check: Callable[[Request], None]
    start_transfer: Callable[[Callable[[], None]], TransferWorker] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What a model's engine process is told."""

    engine: EngineOptions
    handoff: HandoffOptions = NO_PEERS


class EngineLoop:
    """Runs one engine for one front.

    Args:
        parent: process id of the front; when it is no longer our parent, the loop ends.
    """

    def __init__(self, served: ServedEngine, socket: EngineSocket, parent: int) -> None:
        self._engine = served.engine
        self._engine.on_plan = self._note_admissions
        self._check = served.check
        self._vocab_size = served.info.vocab_size
        self._socket = socket
        self._parent = parent
        self._transfer = None if served.start_transfer is None else served.start_transfer(socket.wake)
        self._transfers: list[TransferRecord] = []
        self._moments: list[Moment] = []
        self._stopped = False
        self._waiting: dict[str, set[int]] = {}  # never admitted yet: the sequences not cancelled
        self._admitted: list[Admitted] = []
        self._sent_stats: tuple[SchedulerStats, TransferStats | None] | None = None
        self._compiling: dict[str, list[Cancel]] = {}
        self._compiled: SimpleQueue[tuple[Request, Exception | None]] = SimpleQueue()
        self._compilers = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="baton-grammar")

    def run(self) -> None:
        """Until Stop comes or the parent is gone. Raises what the engine raises."""
        while True:
            for message in self._socket.drain():
                self._take(message)
            self._take_compiled()
            if self._stopped or os.getppid() != self._parent:
                return
            self._exchange()
            if self._engine.has_work():
                self._step()
                self._exchange()
            else:
                self._report()
                self._socket.wait(_IDLE_S)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit(request=request):
                if request.params.grammar is None:
                    self._admit(request, self._error_of(request))
                else:
                    self._compiling[request.request_id] = []
                    self._compilers.submit(self._compile, request)
            case Cancel():
                self._cancel(message)
            case Withdraw(transfer_id=transfer_id):
                self._engine.withdraw(transfer_id)
            case Ping():
                self._socket.send(Pong())
            case Stop():
                self._stopped = True

    def _cancel(self, cancel: Cancel) -> None:
        request_id, index = cancel.request_id, cancel.index
        if request_id in self._compiling:
            if index is None:
                del self._compiling[request_id]
            else:
                self._compiling[request_id].append(cancel)
            return
        if request_id in self._waiting:
            self._waiting[request_id] -= self._waiting[request_id] if index is None else {index}
            if not self._waiting[request_id]:
                del self._waiting[request_id]
        self._engine.finish(request_id, index, cancel.reason)

    def _compile(self, request: Request) -> None:
        """In a thread of its own: the steps of other requests go on."""
        self._compiled.put((request, self._error_of(request)))
        self._socket.wake()

    def _error_of(self, request: Request) -> Exception | None:
        try:
            self._check(request)
        except Exception as error:
            return error
        return None

    def _take_compiled(self) -> None:
        while True:
            try:
                request, error = self._compiled.get_nowait()
            except Empty:
                return
            cancels = self._compiling.pop(request.request_id, None)
            if cancels is not None:  # else cancelled meanwhile
                self._admit(request, error)
                for cancel in cancels:
                    self._cancel(cancel)

    def _admit(self, request: Request, error: Exception | None) -> None:
        """Queue a checked request, or say why not.

        Args:
            error: what the check raised.
        """
        try:
            if error is not None:
                raise error
            self._engine.add(request)
        except RequestError as refusal:
            self._socket.send(Refused(request_id=request.request_id, message=str(refusal), param=refusal.param))
        else:
            self._waiting[request.request_id] = set(range(request.params.n))

    def _exchange(self) -> None:
        """What the transfer thread has to say, and what it must hear."""
        if self._transfer is None:
            return
        deltas: list[SequenceDelta] = []
        events = self._transfer.take_events()
        _log_failures(events)
        for event in events:
            deltas += self._engine.deliver(self._vetted(event))
            if isinstance(event, Settled) and event.record is not None:
                self._transfers.append(event.record)
        commands = self._engine.commands()
        self._transfer.tell(commands)
        now = time.time()
        moments = (moment_of(said, now) for said in (*events, *commands))
        self._moments += [moment for moment in moments if moment is not None]
        for delta in deltas:
            self._waiting.pop(delta.request_id, None)  # it has, or needs, no admission
        if deltas:
            self._send(self._output(deltas, None))

    def _vetted(self, event: Event) -> Event:
        """Token ids that another engine names must be tokens."""
        if isinstance(event, Landed) and any(not 0 <= t.token_id < self._vocab_size for t in event.first_tokens):
            return HandoffFailed(transfer_id=event.transfer_id, reason="the giver named a token that does not exist")
        return event

    def _step(self) -> None:
        deltas = self._engine.step()
        committed = self._engine.committed
        if committed is None and not self._admitted:
            return
        self._send(self._output(deltas, committed))

    def _output(self, deltas: Sequence[SequenceDelta], committed: Step | None) -> Output:
        admitted, self._admitted = self._admitted, []
        transfers, self._transfers = self._transfers, []
        moments, self._moments = self._moments, []
        return Output(
            deltas=tuple(deltas),
            stats=self._engine.stats(),
            time_s=time.time(),
            num_tokens=0 if committed is None else committed.num_tokens,
            admitted=tuple(admitted),
            transfers=tuple(transfers),
            moments=tuple(moments),
            transfer_stats=None if self._transfer is None else self._transfer.stats,
        )

    def _note_admissions(self, step: Step) -> None:
        for admission in step.admissions:
            request_id = admission.request.request_id
            if self._waiting.pop(request_id, None) is not None:
                self._admitted.append(Admitted(request_id=request_id, time_s=time.time()))

    def _report(self) -> None:
        """The engine went idle: let the front see the figures that a Cancel, or a transfer, left."""
        stats = self._engine.stats()
        transfer_stats = None if self._transfer is None else self._transfer.stats
        if (stats, transfer_stats) != self._sent_stats or self._transfers or self._moments:
            self._send(self._output((), None))

    def _send(self, output: Output) -> None:
        self._sent_stats = output.stats, output.transfer_stats
        self._socket.send(output)


def _log_failures(events: Sequence[Event]) -> None:
    """One line for each cause: a lost peer fails many hand-offs at once. Refusals are logged where links are made."""
    by_reason: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, HandoffFailed) and not event.refused:
            by_reason.setdefault(event.reason, []).append(event.transfer_id)
    for reason, (first, *others) in by_reason.items():
        _log.warning("hand-off %s%s failed: %s", first, f" and {len(others)} more" if others else "", shown(reason))


def run_process(build: Callable[[str], ServedEngine]) -> NoReturn:
    """Body of an engine process: build, serve, exit.

    Exit codes: 0 after Stop, 2 when it could not start for a reason that the user can mend, else 1.

    Args:
        build: makes the engine from the text behind --options.
    """
    parser = argparse.ArgumentParser(description="One Baton engine; started by `baton serve`.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--options", required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the front decides
    _die_with_parent(arguments.parent)
    show_logs()
    socket = EngineSocket(arguments.channel)
    code = _serve(build, arguments.options, socket, arguments.parent)
    socket.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a runner thread in the middle of a step must not hold the process


def _serve(build: Callable[[str], ServedEngine], options: str, socket: EngineSocket, parent: int) -> int:
    try:
        served = build(options)
        gc.collect()
        gc.freeze()  # what was loaded stays: later collections need not walk it
        socket.send(Ready(info=served.info))
        EngineLoop(served, socket, parent).run()
    except UserError as error:
        socket.send(Failed(message=str(error), user_error=True))
        return 2
    except Exception as error:
        _log.exception("the engine failed")
        socket.send(Failed(message=_one_line(error)))
        return 1
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, EngineDeadError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _bound_primitive_caches() -> None:
    """Keep oneDNN from holding a compiled kernel for each of the last 1024 shapes, twice. Call it before torch loads.

    The shapes of a server change with every number of rows and blocks of history; at half a MiB each those caches had
    grown by 0.6 GiB under load. One step of a model needs about ten of them, whatever its depth.
    """
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and torch's over it
        os.environ.setdefault(variable, _PRIMITIVES)


def _build_model(options: str) -> ServedEngine:
    _bound_primitive_caches()
    from baton.engine.build import build_engine

    asked = msgspec.json.decode(options, type=ProcessOptions)
    parts = build_engine(asked.engine, asked.handoff)
    return ServedEngine(engine=parts.engine, info=parts.info, check=parts.check, start_transfer=parts.start_transfer)


if __name__ == "__main__":
    run_process(_build_model)
