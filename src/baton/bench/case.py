"""What tells one result file of a comparison from another, and the name it has on disk."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<mode>.+)_qps(?P<qps>[0-9.]+|inf)_in(?P<input>[0-9]+)_out(?P<output>[0-9]+)_iter(?P<iter>[0-9]+)(\.json|\.log)?"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """One point of a sweep, without its mode and its repetition.

    Attributes:
        qps: requests/s; infinite: all at once.
    """

    input_tokens: int
    output_tokens: int
    qps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """One run of a case: `<mode>_qps<q>_in<in>_out<out>_iter<i>`, as vLLM's push/pull script names its files."""

    mode: str
    case: Case
    iteration: int

    def __str__(self) -> str:
        case = self.case
        return f"{self.mode}_qps{case.qps:g}_in{case.input_tokens}_out{case.output_tokens}_iter{self.iteration}"


def parse_name(name: str) -> RunName | None:
    """The run that a file's name stands for; None for other names."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    case = Case(input_tokens=int(found["input"]), output_tokens=int(found["output"]), qps=float(found["qps"]))
    return RunName(mode=found["mode"], case=case, iteration=int(found["iter"]))
