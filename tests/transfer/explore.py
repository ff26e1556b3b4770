"""Schedules of a world: all that differ from the unhurried run in a few choices, or random ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.transfer.hosts import Setup
from tests.transfer.world import MENDING, Action, Violation, World, text

_MAX_STEPS = 200

Choices = tuple[int, ...]
"""Indices at each step, as `_options` counts them; 0 from there on."""


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule that has ended. options: how many there were at each step."""

    world: World
    options: list[int]


def run(world_type: type[World], setup: Setup, choices: Choices) -> Run:
    """One schedule. Choosing another than the first ordinary action holds all before it back until nothing else is left.

    Raises:
        Violation: with the schedule.
    """
    world = world_type(setup)
    options: list[int] = []
    taken: list[Action] = []
    try:
        for step in range(_MAX_STEPS):
            ordinary, faults = world.ordinary(), world.faults()
            choice = choices[step] if step < len(choices) else 0
            options.append(max(len(ordinary), 1) + len(faults))
            if choice >= max(len(ordinary), 1):
                taken.append(faults[choice - max(len(ordinary), 1)])
                world.fault(taken[-1])
            elif ordinary:
                taken.append(ordinary[choice])
                if ordinary[choice][0] not in MENDING:
                    world.hold(ordinary[:choice])
                world.do(ordinary[choice])
            else:
                break
        taken.append(("drain",))
        world.drain()
    except (Violation, AssertionError, KeyError, StopIteration) as error:
        raise Violation(f"{error!r}\n{setup}\nchoices {choices}\n" + "\n".join(map(text, taken))) from error
    return Run(world, options)


def explore(world_type: type[World], setup: Setup, changes: int) -> Iterator[Run]:
    """Every schedule with at most this many choices other than the first, each once."""
    stack: list[tuple[Choices, int]] = [((), changes)]
    while stack:
        choices, left = stack.pop()
        done = run(world_type, setup, choices)
        yield done
        if left:
            for step in range(len(done.options) - 1, len(choices) - 1, -1):
                prefix = choices + (0,) * (step - len(choices))
                stack += [((*prefix, choice), left - 1) for choice in range(1, done.options[step])]
