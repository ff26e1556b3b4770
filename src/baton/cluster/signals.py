"""What SIGTERM and Ctrl-C mean to a service: the first drains, the second ends it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from baton.obs.log import get_logger

_log = get_logger(__name__)


class Signals:
    """Of this process, from `listen` on.

    Args:
        on_force: called at the second signal and each one after it.

    Attributes:
        stop: a signal came.
        force: a second one did.
    """

    def __init__(self, drain_timeout_s: float, on_force: Callable[[], None] = lambda: None) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._on_force = on_force
        self.stop = asyncio.Event()
        self.force = asyncio.Event()

    def listen(self) -> None:
        """Take SIGTERM and SIGINT, on the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            _log.warning("%s again: aborting", number.name)
            self.force.set()
            self._on_force()
        else:
            _log.info("%s: draining for up to %.0f s", number.name, self._drain_timeout_s)
            self.stop.set()
