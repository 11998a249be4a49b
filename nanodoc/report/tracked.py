"""What experiment trackers are given besides the scalars: settings, verdict, and a row for each
finding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nanodoc.report.finding import fix_status
from nanodoc.report.report import Report
from nanodoc.report.secrets import without_secrets
from nanodoc.text import clean

COLUMNS = ("severity", "code", "name", "title", "place", "module", "step", "confidence", "fix")


def settings_of(report: Report) -> dict[str, Any]:
    """What was run."""
    run = without_secrets(report).run
    told = {
        "nanodoc": report.nanodoc,
        "entrypoint": clean(run.entrypoint),
        "device": clean(run.device),
        "amp": run.amp,
        "seed": run.seed,
        "torch": run.torch,
        "python": run.python,
        "steps_requested": run.steps_requested,
    }
    return {key: value for key, value in told.items() if value is not None}


def summary_of(report: Report) -> dict[str, Any]:
    """How it was judged."""
    first = next(iter(without_secrets(report).findings), None)
    told: dict[str, Any] = {
        "verdict": report.verdict,
        "steps": report.vitals.steps,
        "findings": len(report.findings),
        "accepted": len(report.accepted),
    }
    if first is not None:
        told["first finding"] = f"{first.code} {clean(first.title)}"
    return told


def finding_rows(report: Report) -> Iterator[tuple[Any, ...]]:
    """A row of `COLUMNS` for each finding."""
    for finding in without_secrets(report).findings:
        where, fix = finding.culprit.location, next(iter(finding.fixes), None)
        yield (
            finding.severity,
            finding.code,
            finding.name,
            clean(finding.title),
            clean(where.place) if where is not None else "",
            clean(finding.culprit.module or finding.culprit.parameter or ""),
            finding.step,
            round(finding.confidence, 3),
            clean(f"{fix.title} ({fix_status(fix)})") if fix is not None else "",
        )
