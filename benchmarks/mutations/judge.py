"""Whether a finding names the line and the cause of a mutant's mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.mutations.source import Mutation
from benchmarks.mutations.subjects import Mutant
from benchmarks.realcode import location

CLASSES = ("right", "half", "wrong", "missed")
_LOUD = ("warning", "critical")
_NEAR = r"(?:(?!\. ).){0,70}"  # in the same sentence


@cache
def causes() -> Mapping[str, str]:
    """What a practitioner would accept as the cause, by operator."""
    text = Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")
    table: dict[str, str] = yaml.safe_load(text)
    return {name: cause.replace(".*", _NEAR) for name, cause in table.items()}


def loud(findings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The warnings and the critical findings."""
    return [finding for finding in findings if finding["severity"] in _LOUD]


def judged(mutant: Mutant, mutation: Mutation, findings: Sequence[dict[str, Any]]) -> str:
    """`right`, `half`, `wrong` or `missed`, by the first warning or critical finding."""
    first = next(iter(loud(findings)), None)
    if first is None:
        return "missed"
    place = location(first)
    line = (
        Path(place.get("file", "")).name == Path(mutant.file).name
        and place.get("line") in mutation.right
    )
    said = f"{first['title']} {first['explanation']}".lower()
    cause = re.search(causes()[mutant.operator], said) is not None
    return ("wrong", "half", "right")[line + cause]
