"""Checks that run inside a client's own venv: each prints one JSON line. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable


def run_checks(checks: dict[str, Callable[[], str]]) -> None:
    """Run each check; what it returns is its note, what it raises is its failure."""
    for name, check in checks.items():
        try:
            ok, note = True, check()
        except Exception as error:  # whatever it is, the table shows it
            ok, note = False, f"{type(error).__name__}: {error}"
        print(json.dumps({"check": name, "ok": ok, "note": note}), flush=True)


def expect(condition: object, message: object = "") -> None:
    """Fail the running check unless the condition holds (an `assert` would vanish under -O)."""
    if not condition:
        raise AssertionError(str(message))
