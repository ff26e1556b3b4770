"""A worker over its incarnations: what it said, what it was sent, how it is. No I/O; times are passed in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from baton.core.handoff import Role
from baton.router.breaker import Breaker
from baton.router.looks import Look
from baton.router.pairing import GIVES, why_misplaced
from baton.router.view import WorkerView
from baton.router.worker import (
    Outcome,
    Outstanding,
    Share,
    WorkerFacts,
    WorkerGauges,
    WorkerKind,
    WorkerRef,
    WorkerSpec,
    WorkerState,
)


class Life:
    """One incarnation, for as long as it answers. What was sent to it is counted here, and does not burden the next.

    Attributes:
        lost: set when it is over.
        freed_s: when a leg ended last.
    """

    def __init__(self, facts: WorkerFacts) -> None:
        self.facts = facts
        self.lost = asyncio.Event()
        self.outstanding = Outstanding()
        self.breaker = Breaker()
        self.freed_s = 0.0

    def begin(self, share: Share, now: float) -> bool:
        """A leg begins. Returns what `end` wants to know of it: whether the breaker decides by it."""
        self.outstanding.add(share)
        return self.breaker.begin(now)

    def landed(self, share: Share) -> Share:
        """The KV of a leg has arrived. Returns the share it has from now on."""
        self.outstanding.inbound_tokens -= share.inbound_tokens
        return replace(share, inbound_tokens=0)

    def end(self, share: Share, outcome: Outcome, now: float, *, decides: bool) -> None:
        """A leg has ended."""
        self.outstanding.take_off(share)
        self.breaker.end(outcome, now, decides=decides)
        self.freed_s = now


class Member:
    """One worker.

    Args:
        timeout_s: it is down when it has not answered for so long.
        engine_timeout_s: and when the engine behind it has said nothing for so long.

    Attributes:
        worker_id: its URL.
        leaving: it is to be removed when it is drained.
        leased: it registered itself, and is removed when it is not heard of.
        heard_s: its last good look, or its last registration.
        note: why it is not ready; "" when it is.
    """

    def __init__(
        self, spec: WorkerSpec, now: float, *, timeout_s: float, engine_timeout_s: float, leased: bool = False
    ) -> None:
        self.worker_id = spec.url
        self.spec = spec
        self.draining = False
        self.leaving = False
        self.leased = leased
        self.heard_s = now
        self.note = "it has not answered yet"
        self.handoff: Mapping[str, Any] = {}
        self.gauges = WorkerGauges()
        self._life: Life | None = None
        self._reported = WorkerState.STARTING
        self._looked_s: float | None = None
        self._num_lives = 0
        self._stalled = False
        self._misplaced = ""
        self._timeout_s = timeout_s
        self._engine_timeout_s = engine_timeout_s

    @property
    def life(self) -> Life | None:
        """The latest incarnation, perhaps over; None until it has answered once."""
        return self._life

    @property
    def alive(self) -> bool:
        """Whether its latest incarnation is not over."""
        return self._life is not None and not self._life.lost.is_set()

    @property
    def kind(self) -> WorkerKind | None:
        """What it is, while it is up."""
        return self._life.facts.kind if self._life is not None and self.alive else None

    @property
    def role(self) -> Role | None:
        """What it is used as; None while that is not known."""
        return self.spec.role or (None if self._life is None else self._life.facts.role)

    @property
    def state(self) -> WorkerState:
        """As of the last look."""
        if not self.alive:
            starting = self._reported is WorkerState.STARTING
            return WorkerState.STARTING if starting else WorkerState.DOWN
        if self.draining or self._reported is WorkerState.DRAINING:
            return WorkerState.DRAINING
        return WorkerState.READY

    def patience_s(self, now: float) -> float:
        """How long its next answer may take: until it counts as silent, or so long once it does."""
        if not self.alive or self._looked_s is None:
            return self._timeout_s
        return max(0.05, self._looked_s + self._timeout_s - now)

    def saw(self, look: Look, now: float) -> None:
        """It has answered."""
        self._looked_s = self.heard_s = now
        self._reported = look.state
        self.gauges, self.handoff = look.gauges, look.handoff
        silent = look.engine_silent_s >= self._engine_timeout_s
        if look.state in (WorkerState.DOWN, WorkerState.STARTING) or silent:
            self._reported = WorkerState.DOWN if silent else look.state
            silence = f"its engine has said nothing for {look.engine_silent_s:.1f} s"
            self.end_life(silence if silent else f"it says it is {look.state.value}")
            return
        self._stalled = look.engine_silent_s >= self._timeout_s
        self._live_as(look.facts)
        self._misplaced = why_misplaced(self.spec.role, look.facts)
        self.note = self._misplaced or (
            f"its engine is silent for {look.engine_silent_s:.1f} s" if self._stalled else ""
        )

    def missed(self, error: str, now: float, *, refused: bool) -> None:
        """It has not answered. One that refuses connections is down at once, another when that has lasted."""
        if refused or self._looked_s is None or now - self._looked_s >= self._timeout_s:
            self._reported = WorkerState.DOWN
            self.end_life(error)

    def end_life(self, note: str) -> None:
        """Its incarnation is over, if it was not yet: whoever waits for it is told."""
        self.note = note
        self._stalled = False
        if self._life is not None:
            self._life.lost.set()

    def _live_as(self, facts: WorkerFacts) -> None:
        """Go on with the present incarnation, or begin another one."""
        if not facts.incarnation:
            self._num_lives += not self.alive
            facts = replace(facts, incarnation=f"{self.worker_id}#{self._num_lives}")
        if self._life is not None and self.alive and self._life.facts.incarnation == facts.incarnation:
            self._life.facts = facts
            return
        if self._life is not None:
            self._life.lost.set()
        self._life = Life(facts)

    def drained(self) -> bool:
        """Whether nobody needs it any more. A giver's last look must be younger than the end of its last leg."""
        if self._life is None or not self.alive:
            return True
        if self._life.outstanding.num_requests:
            return False
        if self._life.facts.kind is not WorkerKind.BATON or self.role not in GIVES:
            return True
        gauges = self.gauges
        kept = gauges.num_leased or gauges.num_in_flight or gauges.pinned_blocks
        return gauges.read_s > self._life.freed_s and not kept

    def ref(self) -> WorkerRef:
        """Where a leg goes; only once it has answered."""
        assert self._life is not None
        return WorkerRef(worker_id=self.worker_id, url=self.spec.url, facts=self._life.facts, api_key=self.spec.api_key)

    def takes(self, now: float) -> bool:
        """Whether it is well, in its place, not draining, and its breaker lets a request pass."""
        life = self._life
        return life is not None and self.state is WorkerState.READY and not self._misplaced and life.breaker.admits(now)

    def view(self, now: float) -> WorkerView | None:
        """As choosing sees it; None until it has answered once."""
        life = self._life
        if life is None or self.role is None:
            return None
        sent = life.outstanding
        return WorkerView(
            worker_id=self.worker_id,
            role=self.role,
            facts=life.facts,
            takes=self.takes(now),
            stalled=self._stalled,
            gauges=self.gauges,
            num_requests=sent.num_requests,
            num_tokens=sent.num_tokens,
            prompt_blocks=sent.prompt_blocks,
            final_blocks=sent.final_blocks,
            inbound_tokens=sent.inbound_tokens,
        )
