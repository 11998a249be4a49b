"""A rule, and its claim on a root cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.evidence import Evidence

RootKey = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A rule's word on one root cause. Of all claims on a root the best fitting one becomes the
    finding."""

    root: RootKey
    fit: int
    """How specific the explanation is: 0 a fallback, 10 the generic family, 20 a named special case
    of it."""
    finding: Finding
    order: int = 0
    """Position of the root in the step; of equal findings the earlier cause comes first."""
    symptom: int = 0
    """0 a cause; 1 what some layers came to; 2 what the model as a whole came to. A symptom is no
    finding beside a cause of not learning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One entry of the catalogue. `doc` is exactly what `nanodoc explain CODE` prints."""

    code: str
    name: str
    severity: str
    summary: str
    doc: str
    check: Callable[[Rule, Evidence], Iterable[Claim]]


def confidence(*confirmations: float) -> float:
    """The chance that not all of several independent confirmations mislead: 1 − Π(1 − wᵢ), each wᵢ
    in [0, 1)."""
    doubt = 1.0
    for weight in confirmations:
        doubt *= 1.0 - min(max(weight, 0.0), 0.95)
    return 1.0 - doubt
