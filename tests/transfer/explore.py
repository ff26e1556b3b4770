"""Schedules of a world: every one that differs from the unhurried run in a few choices, random ones, and given ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from random import Random
from unittest.mock import patch

from baton.transfer import pull, push, rank
from baton.transfer.mapping import map_ranks
from baton.transfer.moves import kv_moves
from tests.transfer.hosts import Setup
from tests.transfer.world import FAULTS, MENDING, Action, World, text

_MAX_STEPS = 200
_FAULT_RATE = 0.12
_EAGERNESS = 1.5  # 1: all ordinary actions are as likely; more: early ones, as in an unhurried run, are likelier

Choices = tuple[int, ...]
"""What to choose at each step: among the ordinary actions first, then among the faults; 0 from there on."""


@contextmanager
def cached_geometry() -> Iterator[None]:
    """Mapping and descriptors depend on nothing else and are tested elsewhere: each is computed once."""
    mapped, moves = cache(map_ranks), cache(kv_moves)
    with (
        patch.object(rank, "map_ranks", lambda givers, takers: mapped(tuple(givers), tuple(takers))),
        patch.object(push, "kv_moves", moves),
        patch.object(pull, "kv_moves", moves),
    ):
        yield


class Found(AssertionError):
    """A schedule that breaks a promise. choices: to run it again."""

    def __init__(self, world: World, taken: list[Action], choices: Choices | int) -> None:
        super().__init__(f"choices {choices} of {world.setup}:\n" + "\n".join(map(text, taken)))
        self.choices = choices


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule that has ended. options: how many there were at each step behind the given ones."""

    world: World
    options: list[int]


def run(world_type: type[World], setup: Setup, choices: Choices, *, counts: bool = False) -> Run:
    """One schedule. An action that is chosen before others holds these back until nothing else is left to do.

    Args:
        counts: fill `options`.

    Raises:
        Found: from the Violation (or whatever else was raised).
    """
    world, options, taken = world_type(setup), [], list[Action]()
    try:
        for step in range(_MAX_STEPS):
            choice = choices[step] if step < len(choices) else 0
            ordinary = world.ordinary()
            first_fault = max(len(ordinary), 1)
            if step >= len(choices) and counts:
                options.append(first_fault + len(world.faults()))
            if choice >= first_fault:
                taken.append(world.faults()[choice - first_fault])
                world.fault(taken[-1])
            elif ordinary:
                taken.append(ordinary[choice])
                if taken[-1][0] not in MENDING:
                    world.hold(ordinary[:choice])
                world.do(taken[-1])
            else:
                break
        taken.append(("drain",))
        world.drain()
    except Exception as error:
        raise Found(world, taken, choices) from error
    return Run(world, options)


def explore(world_type: type[World], setup: Setup, changes: int) -> Iterator[Run]:
    """Every schedule with at most this many choices other than the first, each once, those with few changes first.

    Raises:
        Found: a schedule breaks a promise.
    """
    generation: list[Choices] = [()]
    for left in range(changes, -1, -1):
        following: list[Choices] = []
        for choices in generation:
            done = run(world_type, setup, choices, counts=left > 0)
            yield done
            for step, options in enumerate(done.options):
                prefix = (*choices, *[0] * step)
                following += [(*prefix, choice) for choice in range(1, options)]
        generation = following


def run_random(world_type: type[World], setup: Setup, seed: int) -> World:
    """One schedule by dice.

    Raises:
        Found: it breaks a promise.
    """
    dice, world, taken = Random(seed), world_type(setup), list[Action]()
    try:
        for _ in range(_MAX_STEPS):
            ordinary = world.ordinary()
            faults = world.faults() if dice.random() < _FAULT_RATE else []
            if faults:
                taken.append(dice.choice(faults))
                world.fault(taken[-1])
            elif ordinary:
                taken.append(ordinary[int(len(ordinary) * dice.random() ** _EAGERNESS)])
                world.do(taken[-1])
            else:
                break
        taken.append(("drain",))
        world.drain()
    except Exception as error:
        raise Found(world, taken, seed) from error
    return world


def play(world: World, schedule: str) -> None:
    """Given actions, separated by commas, each by name and arguments: items by number among those under way.

    Raises:
        Violation: one breaks a promise.
    """
    for step in schedule.split(","):
        name, *args = step.split()
        values: list[object] = [int(arg) if arg.isdigit() else arg for arg in args]
        if name in ("deliver", "fail", "part", "twice", "drop"):
            values = [world.network.pending()[int(args[0]) if args else 0]]
        elif name == "poll":
            values = [world.giver if args[0] == "giver" else world.taker, int(args[1]) if args[1:] else 0]
        (world.fault if name in FAULTS else world.do)((name, *values))
