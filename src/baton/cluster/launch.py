"""How an engine process is called."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import msgspec

from baton.engine.handoff_options import NO_PEERS, HandoffOptions
from baton.engine.options import EngineOptions
from baton.engine.process import ProcessOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """A Python module with the command line of `baton.engine.process`, and the options it gets.

    Attributes:
        options: JSON, as that module reads it.
    """

    module: str
    options: str

    def command(self, address: str, parent: int) -> list[str]:
        """The program and its arguments.

        Args:
            address: of the front's socket.
            parent: process id whose end ends the engine.
        """
        flags = ["--channel", address, "--parent", str(parent), "--options", self.options]
        return [sys.executable, "-m", self.module, *flags]


def model_launch(options: EngineOptions, handoff: HandoffOptions = NO_PEERS) -> EngineLaunch:
    """An engine that runs a model."""
    text = msgspec.json.encode(ProcessOptions(engine=options, handoff=handoff)).decode()
    return EngineLaunch(module="baton.engine.process", options=text)
