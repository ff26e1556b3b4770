"""What both sides of an engine's links share."""

from __future__ import annotations

from dataclasses import dataclass

from baton.transfer.card import Judge
from baton.transfer.incarnations import Incarnations
from baton.wire.control import ControlSockets
from baton.wire.seal import Seal

HANDSHAKE_S = 2.0  # for an answer to Hello, and for the first frame after Welcome


@dataclass(slots=True, kw_only=True)
class Meeting:
    """An engine as its peers meet it.

    Attributes:
        root: the shared secret.
        silence_s: without any authentic frame for this long a link is lost.
        num_malformed: frames that were no authentic message.
        num_late: authentic or harmless frames that belong to no link.
    """

    sockets: ControlSockets
    root: Seal
    judge: Judge
    incarnations: Incarnations
    silence_s: float
    num_malformed: int = 0
    num_late: int = 0
