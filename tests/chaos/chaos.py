"""A fleet of two prefill and two decode engines under load and random faults: every request ends with the right tokens
or with a clear error, and afterwards the fleet is whole, with nothing held.

python -m tests.chaos.chaos --faults 100 --seed 1 --mode push|pull|auto --seconds-between 2 [--output FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.chaos.asks import Ask, draw_asks
from tests.chaos.client import Load, batch
from tests.chaos.faults import KINDS, Fault, Injector, draw_faults
from tests.chaos.models import chaos_model
from tests.chaos.references import right_answers
from tests.chaos.report import Judged, Report, judge_all, table
from tests.chaos.rest import wait_for_nothing
from tests.chaos.up import UpFleet
from tests.chaos.verdicts import Downtime, Verdict

COUNTERS = ("retries", "continuations", "relayed")
_LOOK_S = 0.5
_WHOLE_WITHIN_S, _FREE_WITHIN_S = 60.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run.

    Attributes:
        num_asks: different requests that the load is drawn from.
        num_after: of them are asked again at the end.
    """

    faults: int = 100
    kinds: tuple[str, ...] = KINDS
    seed: int = 1
    mode: str = "auto"
    seconds_between: float = 2.0
    clients: int = 8
    deadline_s: float = 60.0
    num_asks: int = 150
    num_after: int = 60


class Counters:
    """Sums of the router's counters over its restarts; what one counted since the last look at it is lost."""

    def __init__(self, url: str) -> None:
        self.sums: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        self._url = url

    async def watch(self) -> None:
        """Look every now and then, until cancelled."""
        async with httpx.AsyncClient(timeout=2) as http:
            while True:
                await asyncio.sleep(_LOOK_S)
                try:
                    text = (await http.get(self._url + "/metrics")).text
                except httpx.TransportError:
                    continue
                self._take(text)

    def _take(self, text: str) -> None:
        for name in COUNTERS:
            lines = [line for line in text.splitlines() if line.startswith(f"baton_router_{name}_total")]
            now = sum(float(line.rpartition(" ")[2]) for line in lines)
            before = self._last.get(name, 0.0)
            self.sums[name] += now - before if now >= before else now  # type: ignore[assignment]
            self._last[name] = now


async def inject(injector: Injector, faults: Sequence[Fault], seconds_between: float) -> None:
    """One after the other; those that last overlap with those that follow."""
    running = []
    for fault in faults:
        print(f"{time.strftime('%H:%M:%S')} {fault.kind} ({fault.victim})", file=sys.stderr, flush=True)
        running.append(asyncio.create_task(injector.do(fault)))
        await asyncio.sleep(seconds_between)
    await asyncio.gather(*running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """Faults under load, when they are over. not_ready, full_strength_s: as in Report."""

    load: Load
    injector: Injector
    counters: Counters
    not_ready: list[str]
    full_strength_s: float


async def storm(fleet: UpFleet, plan: Plan, asks: Sequence[Ask]) -> Storm:
    """Load from before the first fault until the fleet is whole after the last."""
    counters, injector = Counters(fleet.url), Injector(fleet)
    load = Load(fleet.url, asks, clients=plan.clients, seed=plan.seed, deadline_s=plan.deadline_s)
    watching = asyncio.create_task(counters.watch())
    load.start()
    await asyncio.sleep(plan.seconds_between)
    faults = draw_faults(plan.seed, plan.faults, sorted(fleet.members), plan.kinds)
    await inject(injector, faults, plan.seconds_between)
    not_ready, seconds = await asyncio.to_thread(wait_for_nothing, fleet.not_ready, _WHOLE_WITHIN_S)
    await load.stop()
    await asyncio.sleep(2 * _LOOK_S)
    watching.cancel()
    return Storm(load=load, injector=injector, counters=counters, not_ready=not_ready, full_strength_s=seconds)


def run(plan: Plan, folder: Path) -> Report:
    """Everything, from the right answers to the report.

    Raises:
        AssertionError: the fleet does not come up, or is wrong before the first fault.
    """
    model = chaos_model(folder / "model")
    asks = draw_asks(plan.seed, plan.num_asks)
    right, by_number = right_answers(model, asks), {ask.number: ask for ask in asks}

    def answers(fleet: UpFleet, count: int) -> Judged:
        seen = asyncio.run(batch(fleet.url, asks[:count], clients=plan.clients, deadline_s=plan.deadline_s))
        return judge_all(seen, by_number, right, Downtime())

    with UpFleet(model, folder / "logs", mode=plan.mode) as fleet:
        before = answers(fleet, plan.clients)
        assert before.verdicts == {Verdict.RIGHT.value: plan.clients}, before
        began_s = time.monotonic()
        seen = asyncio.run(storm(fleet, plan, asks))
        held, _ = wait_for_nothing(fleet.held, _FREE_WITHIN_S)
        fallbacks = [fleet.fallbacks()]
        settling = answers(fleet, plan.num_after)
        fallbacks.append(fleet.fallbacks())
        after = answers(fleet, plan.num_after)
        fallbacks.append(fleet.fallbacks())
        held += wait_for_nothing(fleet.held, _FREE_WITHIN_S)[0]
        return Report(
            seed=plan.seed,
            mode=plan.mode,
            seconds=round(time.monotonic() - began_s, 1),
            faults=dict(seen.injector.done),
            missed=dict(seen.injector.missed),
            load=judge_all(seen.load.seen, by_number, right, seen.injector.downtime),
            settling=settling,
            after=after,
            router=dict(seen.counters.sums),
            downtime_s=round(seen.injector.downtime.total_s, 1),
            full_strength_s=round(seen.full_strength_s, 1),
            fallbacks_settling=fallbacks[1] - fallbacks[0],
            fallbacks_after=fallbacks[2] - fallbacks[1],
            not_ready=seen.not_ready,
            held=held,
        )


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # many small engines on few cores
    plan = Plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=plan.faults)
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--mode", choices=("push", "pull", "auto"), default=plan.mode)
    parser.add_argument("--seconds-between", type=float, default=plan.seconds_between)
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--asks", type=int, default=plan.num_asks, help="different requests")
    parser.add_argument("--folder", type=Path, help="keep logs here")
    parser.add_argument("--output", type=Path, help="write the report as JSON")
    given = parser.parse_args()
    plan = Plan(
        faults=given.faults,
        kinds=tuple(given.kinds),
        seed=given.seed,
        mode=given.mode,
        seconds_between=given.seconds_between,
        clients=given.clients,
        num_asks=given.asks,
        num_after=min(plan.num_after, given.asks),
    )
    with tempfile.TemporaryDirectory() as name:
        report = run(plan, given.folder or Path(name))
    print(table(report))
    if given.output is not None:
        given.output.write_text(report.as_json() + "\n")
    sys.exit(bool(report.problems))


if __name__ == "__main__":
    main()
