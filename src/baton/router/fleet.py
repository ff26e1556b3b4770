"""The fleet: who serves a request, and who has what. Used on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from baton.core.errors import ConfigError
from baton.core.handoff import Role
from baton.router.choosing import Choice, Rules, choose, choose_decode
from baton.router.config import RouterConfig
from baton.router.demand import Demand
from baton.router.holds import FleetHold, LostHold
from baton.router.http import Http
from baton.router.line import Line
from baton.router.member import Member
from baton.router.members import Members
from baton.router.panel import FleetPanel
from baton.router.placing import Hold
from baton.router.policies import POLICIES, USES_PREFIXES, Policy
from baton.router.prefix import Prefixes
from baton.router.show_members import show_members
from baton.router.view import WorkerView, matched_tokens, share_of
from baton.router.worker import Placement, WorkerRef, WorkerSpec, WorkerState
from baton.web.errors import ApiError

T = TypeVar("T")

_DECODE, _WHOLE = 0, 1  # ranks in the line: a prompt that is prefilled holds blocks until its decode worker is chosen


class Fleet:
    """Implements `router/placing.py::Placer`. A context: workers are looked at while it lasts.

    Args:
        http: for looks; closed by whoever made it.
        specs: workers that are there until they are removed.

    Attributes:
        members: the workers, from entering the context on.

    Raises:
        ConfigError: there is no policy of that name.
    """

    members: Members

    def __init__(self, config: RouterConfig, http: Http, specs: Iterable[WorkerSpec] = ()) -> None:
        self._config = config
        self._http = http
        self._specs = tuple(specs)
        self._rules = Rules(
            mode=config.mode,
            prefill=_policy(config.prefill_policy),
            decode=_policy(config.decode_policy),
            min_prefill_tokens=config.min_prefill_tokens,
        )
        guesses = config.min_prefill_tokens > 0 or {self._rules.prefill, self._rules.decode} & USES_PREFIXES
        self._prefixes = Prefixes() if guesses else None
        self._line = Line(config.max_queue)
        self._views: dict[str, WorkerView | None] = {}  # made since the worker's last look, begin or end of a leg
        self._turn = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.members = Members(self._config, self._http, self._on_change)
        for spec in self._specs:
            self.members.add(spec)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.members.close()

    async def place(self, demand: Demand, *, avoid: frozenset[str] = frozenset(), deadline_s: float) -> Placement:
        """See placing.Placer."""
        return await self._line.enter(
            (demand.model, demand.splittable, demand.num_new_tokens <= 1, avoid),
            (_WHOLE, demand.priority),
            self._patient(lambda: self._place(demand, avoid)),
            deadline_s=deadline_s,
        )

    async def place_decode(
        self, demand: Demand, prefill: WorkerRef, *, avoid: frozenset[str] = frozenset(), deadline_s: float
    ) -> WorkerRef:
        """See placing.Placer."""
        return await self._line.enter(
            (demand.model, prefill.worker_id, avoid),
            (_DECODE, demand.priority),
            self._patient(lambda: self._place_decode(demand, prefill, avoid)),
            deadline_s=deadline_s,
            must_wait=True,
        )

    def hold(self, worker: WorkerRef, demand: Demand, *, transfer_id: str = "") -> Hold:
        """See placing.Placer. Of an incarnation that is over, the hold is lost from the start."""
        member = self.members.get(worker.worker_id)
        life = None if member is None else member.life
        if member is None or life is None or life.facts.incarnation != worker.facts.incarnation:
            return LostHold()
        if self._prefixes is not None:
            self._prefixes.add(worker.facts.incarnation, demand.prefix)
        share = share_of(worker.facts, member.role or worker.facts.role, demand, handed_over=bool(transfer_id))
        self._views.pop(worker.worker_id, None)
        return FleetHold(worker, life, share, lambda outcome: self.members.released(member, outcome))

    def ready(self) -> list[WorkerRef]:
        """Every worker that takes requests."""
        return [member.ref() for member in self.members if member.state is WorkerState.READY]

    def panel(self) -> FleetPanel:
        """All there is to show, as of now."""
        workers = show_members(list(self.members), self._loop.time())
        return FleetPanel(workers=workers, num_queued=self._line.num_waiting, mode=self._config.mode.value)

    def _patient(self, attempt: Callable[[], T | None]) -> Callable[[], T | None]:
        """`attempt` that finds nobody well only when the time to wait for that is over, or nobody may come back."""
        patience_s = self._config.outage_wait_s
        until_s: float | None = None

        def patient() -> T | None:
            nonlocal until_s
            try:
                return attempt()
            except ApiError as error:
                now = self._loop.time()
                if error.status != 503 or not self.members.any_may_return(now):
                    raise
                if until_s is None:
                    until_s = now + patience_s
                    self._loop.call_at(until_s, self._line.wake)
                if now >= until_s:
                    raise
                return None

        return patient

    def _place(self, demand: Demand, avoid: frozenset[str]) -> Placement | None:
        views = self._views_for(demand)
        choice = choose(
            views,
            demand,
            self._rules,
            avoid=avoid,
            turn=self._next_turn(),
            num_late=self._num_late(views),
            all_known=len(views) == len(self.members),
        )
        return None if choice is None else self._placement(choice)

    def _place_decode(self, demand: Demand, prefill: WorkerRef, avoid: frozenset[str]) -> WorkerRef | None:
        giver = WorkerView(worker_id=prefill.worker_id, role=Role.PREFILL, facts=prefill.facts)
        views = self._views_for(demand)
        chosen = choose_decode(views, demand, giver, self._rules, avoid=avoid, turn=self._next_turn())
        return self._ref(chosen)

    def _placement(self, choice: Choice) -> Placement:
        return Placement(
            prefill=self._ref(choice.prefill), decode=self._ref(choice.decode), mode=choice.mode, reason=choice.reason
        )

    def _ref(self, view: WorkerView | None) -> WorkerRef | None:
        return None if view is None else self.members.find(view.worker_id).ref()

    def _views_for(self, demand: Demand) -> list[WorkerView]:
        views = [view for member in self.members if (view := self._view(member)) is not None]
        if self._prefixes is None or not (matches := self._prefixes.matches(demand.prefix)):
            return views
        return [
            replace(view, num_matched_tokens=matched_tokens(demand, matches.get(view.facts.incarnation, 0)))
            for view in views
        ]

    def _view(self, member: Member) -> WorkerView | None:
        worker_id = member.worker_id
        if worker_id not in self._views:
            self._views[worker_id] = member.view(self._loop.time())
        return self._views[worker_id]

    def _num_late(self, views: Iterable[WorkerView]) -> int:
        """Prompts that are prefilled and wait for a decode worker, and those that may soon be."""
        prefilling = sum(view.num_requests for view in views if view.role is Role.PREFILL)
        return prefilling + self._line.num_waiting_of(_DECODE)

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _on_change(self, member: Member) -> None:
        self._views.pop(member.worker_id, None)
        self._line.wake()


def _policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ConfigError(f"there is no policy {name!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]
