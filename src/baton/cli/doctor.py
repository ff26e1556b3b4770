"""`baton doctor [URL]`: what is wrong with a fleet, a server or this machine, in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from baton.cluster.doctor_finding import Finding

_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "error": typer.colors.RED}


def doctor(
    url: Annotated[str | None, typer.Argument(help="Of a router or a server; without it, this machine.")] = None,
    nixl_backend: Annotated[
        list[str] | None, typer.Option(help="NIXL plug-in that this machine shall start; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list of findings.")] = False,
) -> None:
    """Say what is wrong with a fleet, or this machine, and what to do. Exit code 1 when something does not work."""
    findings = _machine(nixl_backend or ["UCX"]) if url is None else _fleet(url)
    if as_json:
        typer.echo(json.dumps([asdict(each) | {"level": each.level.value} for each in findings], indent=2))
    else:
        _show(findings)
    raise typer.Exit(int(any(each.level.value == "error" for each in findings)))


def _fleet(url: str) -> list[Finding]:
    from baton.cluster.doctor import check_fleet
    from baton.cluster.doctor_gather import gather_fleet
    from baton.cluster.doctor_machine import check_disk
    from baton.cluster.doctor_probe import disk_free_bytes

    return [*check_fleet(gather_fleet(url)), *check_disk(disk_free_bytes())]


def _machine(backends: Sequence[str]) -> list[Finding]:
    from baton.cluster.doctor_machine import check_machine
    from baton.cluster.doctor_probe import gather_machine

    return check_machine(gather_machine(backends))


def _show(findings: Sequence[Finding]) -> None:
    for each in findings:
        level = typer.style(f"{each.level.value:<8}", fg=_COLOURS[each.level.value])
        typer.echo(f"{level} {each.subject}: {each.message}")
