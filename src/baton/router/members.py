"""The workers of a fleet: they are named, register, are looked at, drain and go. Used on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from baton.obs.log import get_logger
from baton.router.config import RouterConfig
from baton.router.health import Watch
from baton.router.http import Http, HttpError
from baton.router.looks import Look
from baton.router.member import Member
from baton.router.worker import Outcome, WorkerSpec, WorkerState

_log = get_logger(__name__)
_POLL_S = 0.02


class Members:
    """All workers by their ids, which are their URLs.

    Args:
        http: for looks.
        on_change: told of a worker that a choice may now come out differently for.
    """

    def __init__(self, config: RouterConfig, http: Http, on_change: Callable[[Member], None]) -> None:
        self._config = config
        self._http = http
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, Member] = {}
        self._watches: dict[str, Watch] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, worker_id: str) -> Member | None:
        """A worker by its id."""
        return self._members.get(worker_id)

    def find(self, name: str) -> Member:
        """The worker that is named by its id, or by the host and port in it.

        Raises:
            KeyError: there is none.
        """
        for worker_id in (name, f"http://{name}", f"https://{name}"):
            if worker_id in self._members:
                return self._members[worker_id]
        raise KeyError(name)

    def add(self, spec: WorkerSpec, *, leased: bool = False) -> Member:
        """Take a worker in, renew its registration, or let one that drains take requests again.

        Args:
            leased: it registers itself: it is removed when it is not heard of for lease_s. What it says again and
                again does not end its draining, and does not change what a person has said of it.
        """
        member = self._members.get(spec.url)
        said_by_others = leased and member is not None and not member.leased
        if member is None or (member.spec != spec and not said_by_others):
            if member is not None:
                self._drop(member, "it was named anew")
            return self._take_in(spec, leased=leased)
        member.heard_s = self._loop.time()
        if not leased:
            member.draining = member.leaving = member.leased = False
            self._on_change(member)
        return member

    def any_may_return(self, now: float) -> bool:
        """Whether one that takes no requests now, and was not told so, may do so again."""
        return any(not member.draining and not member.takes(now) for member in self)

    def drain(self, member: Member) -> None:
        """Send it nothing new."""
        if not member.draining:
            _log.info("worker %s: draining", member.worker_id)
        member.draining = True
        self._on_change(member)

    def remove(self, member: Member, *, now: bool = False) -> None:
        """Drain it, then forget it.

        Args:
            now: do not drain; what runs there is tried elsewhere.
        """
        self.drain(member)
        member.leaving = True
        if now:
            self._drop(member, "it was removed")
        else:
            self._settle(member)

    def released(self, member: Member, outcome: Outcome) -> None:
        """A leg of it has ended."""
        if outcome is Outcome.FAILED and (watch := self._watches.get(member.worker_id)) is not None:
            watch.look_now()
        self._settle(member)
        self._on_change(member)

    async def wait_seen(self, timeout_s: float) -> None:
        """Until each worker was looked at once, but no longer than that."""
        deadline_s = self._loop.time() + timeout_s
        while self._loop.time() < deadline_s and any(each.state is WorkerState.STARTING for each in self):
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """End all looks."""
        await asyncio.gather(*(watch.close() for watch in self._watches.values()), *self._closing)

    def _take_in(self, spec: WorkerSpec, *, leased: bool) -> Member:
        member = Member(
            spec,
            self._loop.time(),
            leased=leased,
            timeout_s=self._config.health_timeout_s,
            engine_timeout_s=self._config.engine_timeout_s,
        )
        self._members[member.worker_id] = member
        self._watches[member.worker_id] = Watch(
            self._http,
            spec,
            interval_s=self._config.health_interval_s,
            patience_s=lambda: member.patience_s(self._loop.time()),
            kind=lambda: member.kind,
            on_look=lambda found: self._looked(member, found),
        )
        _log.info("worker %s: added", member.worker_id)
        return member

    def _looked(self, member: Member, found: Look | HttpError) -> None:
        before, now = member.state, self._loop.time()
        if isinstance(found, Look):
            member.saw(found, now)
        else:
            member.missed(str(found), now, refused=found.refused)
        if member.state is not before:
            why = f" ({member.note})" if member.note else ""
            _log.info("worker %s: %s%s", member.worker_id, member.state.value, why)
        if member.leased and now - member.heard_s >= self._config.lease_s:
            self._drop(member, "it was not heard of")
        self._settle(member)
        self._on_change(member)

    def _settle(self, member: Member) -> None:
        """Forget one that is to leave and is needed no more."""
        if member.leaving and self._members.get(member.worker_id) is member and member.drained():
            self._drop(member, "it is drained")

    def _drop(self, member: Member, why: str) -> None:
        _log.info("worker %s: removed: %s", member.worker_id, why)
        member.end_life(why)
        del self._members[member.worker_id]
        closing = self._loop.create_task(self._watches.pop(member.worker_id).close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._on_change(member)
