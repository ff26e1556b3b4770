"""Logging: one logger name a package under "baton", one line per state change a human would ask about."""

from __future__ import annotations

import logging
import sys

ROOT = "baton"
_FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def get_logger(module: str) -> logging.Logger:
    """The logger of a module; pass `__name__`."""
    return logging.getLogger(module)


def show_logs(level: int = logging.INFO) -> None:
    """Send Baton's logs to stderr, unless the program configured logging itself."""
    logger = logging.getLogger(ROOT)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level)
