"""What a person sees of a fleet that starts: progress, then one table. Plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from baton.cluster.ask import ask
from baton.cluster.fleet_member import Member
from baton.cluster.fleet_plan import MemberKind

_PLAIN_COLUMNS = 200
_ASK_TIMEOUT_S = 5.0
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table, as text."""

    name: str
    url: str
    side_channel: str = _UNKNOWN
    blocks: str = _UNKNOWN
    fingerprint: str = _UNKNOWN
    pid: str


def row(member: Member, stats: Any) -> Row:
    """stats: the body of its GET /stats; anything else for the router."""
    name, url, pid = member.plan.name, member.url, str(member.pid or _UNKNOWN)
    if not isinstance(stats, dict):
        return Row(name=name, url=url, pid=pid)
    served, peer = stats.get("served", {}), stats.get("handoff", {})
    return Row(
        name=name,
        url=url,
        side_channel=f"{peer['host']}:{peer['port']}" if peer else _UNKNOWN,
        blocks=f"{served.get('num_blocks', _UNKNOWN)} x {served.get('block_tokens', _UNKNOWN)} tokens",
        fingerprint=str(served.get("fingerprint", _UNKNOWN))[:16],
        pid=pid,
    )


class FleetDisplay:
    """Progress on stderr, the table and the router's URL on stdout."""

    def __init__(self) -> None:
        self._err = Console(stderr=True, highlight=False)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if self._err.is_terminal:
            text = TextColumn("{task.fields[name]:<12}{task.description}")
            self._progress = Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=self._err, transient=True)
            self._progress.start()

    def starting(self, name: str) -> None:
        """A process has been started."""
        if self._progress is not None:
            self._tasks[name] = self._progress.add_task("starting", total=1, name=name)

    def ready(self, name: str, url: str, seconds: float) -> None:
        """It serves, so many seconds after its start."""
        if self._progress is not None:
            self._progress.update(self._tasks[name], completed=1, description=f"ready at {url}")
        else:
            self._err.print(f"{name} is ready at {url} ({seconds:.1f} s)", soft_wrap=True)

    def show(self, members: Iterable[Member]) -> None:
        """All serve: the whole fleet, the router last."""
        members = list(members)
        stats = [
            None if m.plan.kind is MemberKind.ROUTER else ask(m.url + "/stats", timeout_s=_ASK_TIMEOUT_S).body
            for m in members
        ]
        # Without a terminal there is no width to keep to, and a cut URL is of no use.
        out = Console(highlight=False, width=None if self._err.is_terminal else _PLAIN_COLUMNS)
        out.print(table(row(member, told) for member, told in zip(members, stats, strict=True)))
        print(f"Logs are in {members[0].log_file.parent}")
        print(f"Baton is ready at {members[-1].url}", flush=True)

    def close(self) -> None:
        """The start is over, in whatever way."""
        if self._progress is not None:
            self._progress.stop()


def table(rows: Iterable[Row]) -> Table:
    """Of the fleet."""
    shown = Table(box=SIMPLE_HEAD)
    for heading in ("process", "URL", "side channel", "KV blocks", "fingerprint", "pid"):
        shown.add_column(heading, no_wrap=True)
    for each in rows:
        cells = (each.name, each.url, each.side_channel, each.blocks, each.fingerprint, each.pid)
        shown.add_row(*cells)
    return shown
