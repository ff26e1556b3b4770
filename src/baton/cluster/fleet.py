"""A fleet on this machine: engines, then a router before them; watched, and ended in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from baton.cluster.ask import ask
from baton.cluster.fleet_member import Member
from baton.cluster.fleet_plan import FleetConfig, MemberKind, MemberPlan, engine_plans, router_plan, this_machine
from baton.cluster.signals import Signals
from baton.cluster.waiting import first, unless
from baton.core.errors import ConfigError, EngineDeadError
from baton.engine.handoff_options import PEER_SECRET
from baton.obs.log import get_logger

_log = get_logger(__name__)
_STOP_MARGIN_S = 10.0  # beyond the drain: a process ends its engine, its connections, itself
_LOOK_S = 0.1
_LOOK_TIMEOUT_S = 2.0
_ROUTER_SEES_S = 30.0

OK, FAILED = 0, 1


class Display(Protocol):
    """What a person sees of a start."""

    def starting(self, name: str) -> None:
        """A process has been started."""

    def ready(self, name: str, url: str, seconds: float) -> None:
        """It serves, so many seconds after its start."""

    def show(self, members: Iterable[Member]) -> None:
        """All serve: the whole fleet, the router last. Called in a thread."""

    def close(self) -> None:
        """The start is over, in whatever way."""


class Fleet:
    """Engines and a router.

    Args:
        environment: what the processes inherit.
    """

    def __init__(self, config: FleetConfig, display: Display, environment: Mapping[str, str]) -> None:
        self._config = config
        self._display = display
        self._environment = {PEER_SECRET: secrets.token_hex(32), **environment}
        self._signals = Signals(config.drain_timeout_s, on_force=self._kill)
        self._stop, self._force = self._signals.stop, self._signals.force
        plans = engine_plans(config, this_machine(environment), environment)
        self._engines = [self._member(plan) for plan in plans]
        self._router: Member | None = None

    @property
    def members(self) -> list[Member]:
        """All, the router last."""
        return [*self._engines, *([] if self._router is None else [self._router])]

    async def run(self) -> int:
        """Start, serve until a signal comes, end; returns the exit code.

        The first SIGTERM or SIGINT drains, a second one kills. Nothing is left running afterwards.

        Returns:
            0 after a drain; 1 after a second signal, or when the router or all engines of a role stay down.

        Raises:
            ConfigError, EngineDeadError: a process did not start.
        """
        self._signals.listen()
        try:
            code = await self._serve() if await unless(self._stop, self._start()) else OK
            await self._end()
            return FAILED if self._force.is_set() else code
        finally:
            self._display.close()
            self._kill()
            await asyncio.gather(*(member.stop(0) for member in self.members))

    def _member(self, plan: MemberPlan) -> Member:
        return Member(plan, self._config.log_dir, self._environment, self._config.max_restarts)

    def _kill(self) -> None:
        for member in self.members:
            member.kill()

    async def _start(self) -> None:
        await asyncio.gather(*(self._started(member) for member in self._engines))  # the first error ends it
        urls = {kind: [m.url for m in self._engines if m.plan.kind is kind] for kind in MemberKind}
        plan = router_plan(self._config, urls[MemberKind.PREFILL], urls[MemberKind.DECODE])
        self._router = self._member(plan)
        await self._started(self._router)
        await self._router_sees_all(self._router)
        self._display.close()
        await asyncio.to_thread(self._display.show, self.members)

    async def _started(self, member: Member) -> None:
        """Until it is ready; raises what is wrong when it does not come so far."""
        self._display.starting(member.plan.name)
        member.start()
        await first(member.ready.wait(), member.ended.wait())
        if member.ready.is_set():
            self._display.ready(member.plan.name, member.url, member.was_ready_s)
            return
        words = member.last_words()
        if member.exit_code == 2:  # the user can mend it, and it says how
            raise ConfigError(f"{member.plan.name}: {words.removeprefix('baton: ')}")
        raise EngineDeadError(f"{member.plan.name} ended: {member.failure}: {words} (all of it: {member.log_file})")

    async def _router_sees_all(self, router: Member) -> None:
        """Until the router takes requests: it has looked at the engines."""
        deadline_s = time.monotonic() + _ROUTER_SEES_S
        while (seen := await asyncio.to_thread(ask, router.url + "/ready", timeout_s=_LOOK_TIMEOUT_S)).status != 200:
            if time.monotonic() >= deadline_s:
                raise EngineDeadError(f"the router does not take requests ({seen.error}); see {router.log_file}")
            await asyncio.sleep(_LOOK_S)

    async def _serve(self) -> int:
        """Until a signal comes, or what is left cannot serve."""
        ends = [asyncio.create_task(member.ended.wait()) for member in self.members]
        stop = asyncio.create_task(self._stop.wait())
        waiting = {stop, *ends}
        try:
            while not stop.done():
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                lost = self._lost()
                if not stop.done() and lost is not None:
                    _log.error("%s: ending", lost)
                    return FAILED
        finally:
            for task in (stop, *ends):
                task.cancel()
        return OK

    def _lost(self) -> str | None:
        """Why the fleet cannot serve any more."""
        for kind in MemberKind:
            if all(member.ended.is_set() for member in self.members if member.plan.kind is kind):
                return f"no {kind.value} process is left"
        return None

    async def _end(self) -> None:
        """The router first, which lets requests end; then those that take, then those that give."""
        timeout_s = self._config.drain_timeout_s + _STOP_MARGIN_S
        for kind in MemberKind:
            group = [member for member in self.members if member.plan.kind is kind]
            await asyncio.gather(*(member.stop(timeout_s) for member in group))


def run_fleet(config: FleetConfig, display: Display) -> int:
    """Run a fleet until a signal comes; returns the exit code. See `Fleet.run`."""

    async def run() -> int:
        return await Fleet(config, display, os.environ).run()

    return asyncio.run(run())
