"""Findings, fixes, and who is to blame."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nanodoc.diagnosis.remedy import Remedy
from nanodoc.errors import Phase
from nanodoc.facts.source import SourceSpan

GROWTH = "growth"
"""Label of the evidence that tells how a value grew until it overflowed."""
USUAL_CAUSE = "usual cause"
"""Label of the evidence that says what such an exception mostly comes from."""


Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")  # gravest first
CulpritKind = Literal["op", "module", "parameter", "data", "optimizer", "config", "environment"]
Applicability = Literal["machine", "likely", "maybe"]
"""How safely a fix can be applied as written."""
CheckState = Literal["ok", "problem", "not checked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """What is to blame. `samples` index into the batch, `dataset_indices` into the data set."""

    kind: CulpritKind
    op: str | None = None
    node: str | None = None
    module: str | None = None
    module_type: str | None = None
    parameter: str | None = None
    batch_path: str | None = None
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()
    location: SourceSpan | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLink:
    """One op on the way from the cause to the symptom."""

    op: str
    module: str | None
    line: int | None
    dtype: str | None
    shape: tuple[int, ...]
    absmax_in: float | None
    absmax_out: float | None
    nonfinite_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A proposed change. `verified` is True only if a replay with it was healthy, None if it was
    not tried."""

    title: str
    patch: str | None = None
    verified: bool | None = None
    confidence: Applicability = "likely"
    loss_change: float | None = None
    """How far the fix moves a loss that was healthy, relative to it."""
    loss_of: str = ""
    """Whose loss that is; not part of the public report."""
    outcome: str | None = None
    """What the run's steps came to with it."""
    remedy: Remedy | None = None
    """How to try it; not part of the public report."""
    replaces: SourceSpan | None = None
    """The expression that `patch` stands for, where it is not the culprit's own; not part of the
    public report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One root cause with its evidence and its effects."""

    code: str
    name: str
    severity: Severity
    confidence: float
    title: str
    explanation: str
    culprit: Culprit
    phase: Phase
    step: int | None
    rank: int = 0
    family: str = ""
    """Of the rule; not part of the public report."""
    evidence: tuple[tuple[str, Any], ...] = ()
    chain: tuple[ChainLink, ...] = ()
    effects: tuple[tuple[str, int | None], ...] = ()
    experiments: tuple[Mapping[str, Any], ...] = ()
    fixes: tuple[Fix, ...] = ()
    cause: str | None = None
    """What the experiments' pattern says: "precision", "data", "weights", "mathematics" or
    "environment"."""
    cause_why: str = ""

    @property
    def fingerprint(self) -> str:
        """Code, module and source line, hashed: the same finding in another run has the same
        one."""
        location = self.culprit.location
        parts = (
            self.code,
            self.culprit.module or "",
            self.culprit.parameter or "",
            location.code if location else "",
        )
        return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


OK: CheckState = "ok"
PROBLEM: CheckState = "problem"
SKIPPED: CheckState = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One line of the list."""

    name: str
    state: CheckState
    text: str
