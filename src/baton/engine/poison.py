"""Debugging: blocks that change hands are filled with a pattern, and none of it may be left where KV has landed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton.cache.pool import BlockPool
from baton.core.exchange import Command, Event, Failed, Forgo, Landed, Reserve
from baton.engine.executor import Executor


class BlockMemory(Protocol):
    """The blocks' memory; `ModelRunner` or `StubRunner`. Called in the runner thread."""

    def poison(self, blocks: Sequence[int]) -> None:
        """Fill whole blocks with the pattern; done when it returns."""

    def count_poisoned(self, blocks: Sequence[int], first_token: int, last_token: int) -> int:
        """Tokens [first_token, last_token) of these blocks, in order, that hold the pattern."""


class Poison:
    """Fills what `pool` hands out, and checks what lands. Both wait for the steps in flight: slow, and in order.

    A step writes each place of a block before it reads it, so a pattern that reaches a result is a bug of ours.
    """

    def __init__(self, memory: BlockMemory, executor: Executor, pool: BlockPool) -> None:
        self._memory = memory
        self._executor = executor
        self._reserved: dict[str, Reserve] = {}
        pool.on_allocate = self._fill

    def _fill(self, blocks: Sequence[int]) -> None:
        if blocks:
            self._executor.call(lambda: self._memory.poison(blocks))

    def note(self, commands: Sequence[Command]) -> None:
        """Commands leave for the transfer thread: remember what is reserved."""
        for command in commands:
            if isinstance(command, Reserve):
                self._reserved[command.transfer_id] = command
            elif isinstance(command, Forgo):
                self._reserved.pop(command.transfer_id, None)

    def check(self, event: Event) -> None:
        """An event is about to be taken.

        Raises:
            AssertionError: blocks are said to have landed and still hold the pattern.
        """
        if not isinstance(event, Landed | Failed):
            return
        reserve = self._reserved.pop(event.transfer_id, None)
        if reserve is None or isinstance(event, Failed):
            return
        num_tokens = reserve.num_tokens - reserve.num_cached_tokens
        missed = self._executor.call(lambda: self._memory.count_poisoned(reserve.block_ids, 0, num_tokens))
        assert missed == 0, f"transfer {event.transfer_id} landed and left {missed} of {num_tokens} tokens unwritten"
