"""Several servers' metrics in one text: each sample gets the label `worker`, each family its head once. Pure.

The format is Prometheus's text format 0.0.4: lines `# HELP name text`, `# TYPE name kind` and `name{labels} value`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_HEAD = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][\w:]*)(?: (.*))?", re.ASCII)
_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"'
_SAMPLE = re.compile(
    rf"([a-zA-Z_:][\w:]*)(?:\{{((?:{_LABEL}(?:,\s*|(?=\}})))*)\}})?\s+([^\s{{}}]+(?:\s+-?\d+)?)\s*", re.ASCII
)
_OWN = re.compile(r'(^|,\s*)worker="')
_ENDINGS = ("_bucket", "_sum", "_count")
_UNTYPED = "untyped"


@dataclass(slots=True)
class _Family:
    kind: str = _UNTYPED
    help_text: str | None = None
    samples: list[str] = field(default_factory=list)


def merge_expositions(texts: Mapping[str, str]) -> str:
    """One exposition of all.

    Args:
        texts: by id of the worker. A label `worker` of its own becomes `exported_worker`.

    What is no sample is dropped, and so is a worker's family whose type differs from what an earlier worker said.
    """
    families: dict[str, _Family] = {}
    for worker, text in texts.items():
        label = f'worker="{_escaped(worker)}"'
        for name, found in _families(text, label).items():
            known = families.setdefault(name, found)
            if known is not found and known.kind == found.kind:
                known.samples += found.samples
    return "".join(_rendered(name, family) for name, family in families.items() if family.samples)


def _families(text: str, label: str) -> dict[str, _Family]:
    families: dict[str, _Family] = {}
    for line in text.split("\n"):
        head = _HEAD.fullmatch(line.rstrip("\r"))
        if head is not None:
            family = families.setdefault(head[2], _Family())
            if head[1] == "HELP":
                family.help_text = head[3] or ""
            else:
                family.kind = head[3] or _UNTYPED
            continue
        sample = _SAMPLE.fullmatch(line.rstrip("\r"))
        if sample is not None:
            family = families.setdefault(_family_of(sample[1], families), _Family())
            family.samples.append(_labelled(sample, label))
    return families


def _family_of(name: str, families: Mapping[str, _Family]) -> str:
    """The family that a sample belongs to: histograms and summaries have samples with endings."""
    if name in families:
        return name
    for ending in _ENDINGS:
        family = families.get(name.removesuffix(ending)) if name.endswith(ending) else None
        if family is not None and family.kind in ("histogram", "summary"):
            return name.removesuffix(ending)
    return name


def _labelled(sample: re.Match[str], label: str) -> str:
    labels = _OWN.sub(r'\1exported_worker="', (sample[2] or "").rstrip(", "))
    return f"{sample[1]}{{{label}{',' if labels else ''}{labels}}} {sample[3]}"


def _rendered(name: str, family: _Family) -> str:
    return "\n".join((*_head(name, family), *family.samples, ""))


def _head(name: str, family: _Family) -> Iterator[str]:
    if family.help_text is not None:
        yield f"# HELP {name} {family.help_text}"
    yield f"# TYPE {name} {family.kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
