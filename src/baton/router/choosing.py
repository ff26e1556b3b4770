"""Who serves a request. Pure: from views of the workers, a demand and the rules to a choice, or to "wait"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.core.handoff import Role, TransferMode
from baton.router.config import Mode
from baton.router.demand import Demand
from baton.router.pairing import why_not_paired
from baton.router.policies import Policy, of_session
from baton.router.view import WorkerView, has_room
from baton.web.errors import ApiError

_LATE_PER_DECODE = 4
"""Prompts per decode worker that are prefilled ahead while all of those are full: more would outlive their leases."""

_MODES = {
    Mode.PUSH: (TransferMode.PUSH,),
    Mode.PULL: (TransferMode.PULL,),
    Mode.AUTO: (TransferMode.PUSH, TransferMode.PULL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a user wants of all choices. See RouterConfig."""

    mode: Mode
    prefill: Policy
    decode: Policy
    min_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """As Placement, with views."""

    prefill: WorkerView | None = None
    decode: WorkerView | None = None
    mode: TransferMode | None = None
    reason: str = ""


def choose(
    workers: Sequence[WorkerView],
    demand: Demand,
    rules: Rules,
    *,
    avoid: frozenset[str] = frozenset(),
    turn: int = 0,
    num_late: int = 0,
    all_known: bool = True,
) -> Choice | None:
    """Place a request; None: those that could serve it are full.

    Args:
        workers: those that have answered once, however they are now.
        avoid: ids that are taken only when there is no other.
        num_late: prompts that are being prefilled, and those that are and have no decode worker yet.
        all_known: there is no other worker.

    Raises:
        ApiError: 404, nobody serves the model; 503, none that does is well.
    """
    round_ = _Round(_serving(workers, demand, all_known=all_known), demand, rules, avoid, turn)
    if demand.splittable and demand.num_new_tokens <= 1 and round_.prefills:
        return round_.one_token() or round_.alone(round_.mixed, "one token")
    if not round_.decodes and not round_.mixed:
        raise _unavailable(workers, "decode")
    if not demand.splittable:
        return round_.alone(round_.mixed, "whole") or round_.alone(round_.decodes, "whole")
    if not round_.decodes:
        return round_.alone(round_.mixed, "no decode worker" if round_.prefills else "")
    if not round_.prefills:
        return round_.alone(round_.mixed, "no prefill worker") or round_.alone(round_.decodes, "no prefill worker")
    return round_.split(num_late)


def choose_decode(
    workers: Sequence[WorkerView],
    demand: Demand,
    prefill: WorkerView,
    rules: Rules,
    *,
    avoid: frozenset[str] = frozenset(),
    turn: int = 0,
) -> WorkerView | None:
    """The decode worker of a pull whose prefill has ended; None: all that can pair with it are full.

    Args:
        prefill: the incarnation that has the KV, however it is now.

    Raises:
        ApiError: 503, none that can pair with it is well.
    """
    round_ = _Round(_serving(workers, demand, all_known=False), demand, rules, avoid, turn)
    fitting = [worker for worker in round_.decodes if _fits(prefill, worker, TransferMode.PULL)]
    if not fitting:
        raise _unavailable(workers, "decode")
    return round_.pick(fitting, rules.decode)


class _Round:
    """One choice: the workers that are well, by role."""

    def __init__(
        self, serving: Sequence[WorkerView], demand: Demand, rules: Rules, avoid: frozenset[str], turn: int
    ) -> None:
        self._demand = demand
        self._rules = rules
        self._turn = turn
        well = [worker for worker in serving if worker.takes]
        self.prefills, self.decodes, self.mixed = (
            _rather([worker for worker in well if worker.role is role], avoid) for role in Role
        )

    def pick(self, candidates: Iterable[WorkerView], policy: Policy) -> WorkerView | None:
        """Of those that have room: the session's, or the policy's choice."""
        with_room = [worker for worker in candidates if has_room(worker, self._demand)]
        if not with_room:
            return None
        if self._demand.session is not None:
            return of_session(with_room, self._demand.session)
        return with_room[0] if len(with_room) == 1 else policy(with_room, self._demand, self._turn)

    def alone(self, candidates: Sequence[WorkerView], reason: str) -> Choice | None:
        """One worker for all of it."""
        chosen = self.pick(candidates, self._rules.decode)
        return None if chosen is None else Choice(decode=chosen, reason=reason)

    def one_token(self) -> Choice | None:
        """A prefill worker for an answer that is over with its first token."""
        chosen = self.pick(self.prefills, self._rules.prefill)
        return None if chosen is None else Choice(prefill=chosen, reason="one token")

    def split(self, num_late: int) -> Choice | None:
        """A pair, unless the prompt is too short for it or no pair can work.

        With all decode workers full: a mixed worker, or a prefill that goes ahead, for whoever has room first to pull.
        """
        least = self._rules.min_prefill_tokens
        if least > 0:
            short = [each for each in self.decodes if self._demand.num_prompt_tokens - each.num_matched_tokens < least]
            if choice := self.alone(short, "little to prefill"):
                return choice
        decodes = {
            mode: [each for each in self.decodes if any(_fits(p, each, mode) for p in self.prefills)]
            for mode in _MODES[self._rules.mode]
        }
        if not any(decodes.values()):
            return self.alone(self.mixed, "no pair fits") or self.alone(self.decodes, "no pair fits")
        for mode, fitting in decodes.items():
            with_room = [each for each in fitting if has_room(each, self._demand)]
            choice = self._push(with_room) if mode is TransferMode.PUSH else self._pull(with_room)
            if choice is not None:
                return choice
        if choice := self.alone(self.mixed, "all pairs are full"):
            return choice
        late = decodes.get(TransferMode.PULL, [])
        return self._pull(late) if num_late < _LATE_PER_DECODE * len(late) else None

    def _push(self, decodes: Sequence[WorkerView]) -> Choice | None:
        """The decode worker first: its choice is for the whole answer. Its partner is any that fits it."""
        left = list(decodes)
        while (decode := self.pick(left, self._rules.decode)) is not None:
            fitting = [each for each in self.prefills if _fits(each, decode, TransferMode.PUSH)]
            prefill = self.pick(fitting, self._rules.prefill)
            if prefill is not None:
                return Choice(prefill=prefill, decode=decode, mode=TransferMode.PUSH)
            left.remove(decode)
        return None

    def _pull(self, decodes: Sequence[WorkerView]) -> Choice | None:
        """The prefill worker; its partner, one of these or another, is chosen when it has ended."""
        fitting = [each for each in self.prefills if any(_fits(each, d, TransferMode.PULL) for d in decodes)]
        prefill = self.pick(fitting, self._rules.prefill)
        return None if prefill is None else Choice(prefill=prefill, mode=TransferMode.PULL)


def _fits(prefill: WorkerView, decode: WorkerView, mode: TransferMode) -> bool:
    return not why_not_paired(prefill.facts, decode.facts, frozenset((mode,)))


def _serving(workers: Sequence[WorkerView], demand: Demand, *, all_known: bool) -> Sequence[WorkerView]:
    serving = [worker for worker in workers if worker.serves(demand.model)]
    if workers and all_known and not serving:
        raise ApiError(404, f"no worker serves the model {demand.model!r}; see /v1/models", param="model")
    return serving


def _rather(workers: list[WorkerView], avoid: frozenset[str]) -> list[WorkerView]:
    """Without those to avoid, unless nobody else is left."""
    if not avoid:
        return workers
    return [worker for worker in workers if worker.worker_id not in avoid] or workers


def _unavailable(workers: Sequence[WorkerView], role: str) -> ApiError:
    if not workers:
        return ApiError(503, "no worker has answered yet", retry=True)
    return ApiError(503, f"no {role} worker that serves this is well", retry=True)
