"""The reports of the trainings that one script makes, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nanodoc.diagnosis.finding import SEVERITIES, Finding
from nanodoc.report.report import NOTHING, Report


def of_all_trainings(reports: Sequence[Report]) -> Report:
    """One report: the head and the curves are those of the training with the worst finding, the
    first of several that are sick, else the last; the findings of the others follow. `reports` are
    in the order of the trainings."""
    watched = [r for r in reports if r.vitals.steps or r.findings]
    if not watched:
        return reports[-1]
    worst = min(_badness(report) for report in watched)
    alike = [report for report in watched if _badness(report) == worst]
    base = alike[-1 if alike[-1].verdict == NOTHING else 0]
    of_base = {finding.fingerprint for finding in base.findings}
    others: dict[str, Finding] = {}
    for number, report in enumerate(watched, 1):
        for finding in report.findings:
            if finding.fingerprint not in of_base:
                seen = replace(finding, evidence=(*finding.evidence, ("training", number)))
                others.setdefault(finding.fingerprint, seen)
    not_checked = dict.fromkeys(pair for report in watched for pair in report.not_checked)
    if reports[-1] not in watched:
        not_checked["a later training", "it was over before it could be watched"] = None
    return replace(
        base,
        findings=(
            *base.findings,
            *sorted(others.values(), key=lambda finding: SEVERITIES.index(finding.severity)),
        ),
        not_checked=tuple(not_checked),
        interrupted=any(report.interrupted for report in reports),
        broke=any(report.broke for report in watched),
        whole=all(report.whole for report in watched),
        run=replace(
            base.run,
            trainings=tuple(_line(report, report is base) for report in watched)
            if len(watched) > 1
            else (),
        ),
    )


def _badness(report: Report) -> int:
    return min((SEVERITIES.index(f.severity) for f in report.findings), default=len(SEVERITIES))


def _line(report: Report, shown: bool) -> str:
    losses = report.vitals.losses
    place = report.run.step_found.removeprefix("step ").split(", ")[0]
    loss = f", loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else ""
    this = " (this one)" if shown else ""
    return f"{place}, {report.vitals.steps} steps{loss}: {report.verdict}{this}"
