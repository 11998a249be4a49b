"""What is done with one finding after the rules have judged: the experiments' rows and cause, the
samples that are guilty, and its fixes tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.remedy import Remedy
from nanodoc.experiments.past import Past
from nanodoc.experiments.remedies import WITHOUT_FAILURE, Remedies
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.trials import Pattern
from nanodoc.rules.catalogue import can_tell


class Deciding(Protocol):
    """Holds the pattern of the experiments, and decides anew on the cause."""

    pattern: Pattern

    def decide(self, guilty: bool | None) -> None: ...


class Treatment:
    """The treatment of one run's findings."""

    def __init__(
        self,
        trials: StepTrials,
        step: Step,
        known: Deciding,
        evidence: Evidence,
        say: Say,
        past: Past | None,
    ) -> None:
        self._known = known
        self._raised = evidence.failure is not None
        self._remedies = Remedies(
            trials, step, known.pattern, say=say, past=past, losses=evidence.losses
        )

    def with_cause(self, finding: Finding) -> Finding:
        """The finding with what the experiments say was the cause, where they are about it."""
        if not _of_the_values(finding):
            return finding
        pattern = self._known.pattern
        return replace(finding, cause=pattern.cause, cause_why=pattern.why)

    def treated(self, finding: Finding) -> Finding:
        """The finding with its guilty samples, and with its fixes tried."""
        remedies = self._remedies
        if not can_tell(finding, "values"):
            return self._fixes_only(finding)
        tried = _remedies(finding)
        on_weights = finding.culprit.kind == "optimizer" or finding.phase == "optimizer"
        if tried and _need_no_failure(tried):
            return remedies.on(finding)
        if not on_weights and not remedies.unhealthy():
            # loss and gradients are finite as it is (a probe saw the NaN, or it does not come
            # again): nothing that is tried could show anything
            return finding
        if not on_weights and finding.severity == "critical" and finding.step is not None:
            finding = remedies.guilty_samples(finding)
            self._known.decide(remedies.guilty)
        return self.with_cause(remedies.on(finding))

    def _fixes_only(self, finding: Finding) -> Finding:
        if self._raised and _of_an_exception(finding):
            return self._remedies.raising_samples(finding)
        tried = _remedies(finding)
        on_the_step = [remedy for remedy in tried if not remedy.whole_run]
        if not tried or (not _need_no_failure(on_the_step) and not self._remedies.unhealthy()):
            return finding
        return self._remedies.on(finding)


def with_rows(finding: Finding, pattern: Pattern) -> Finding:
    """The finding with the experiments as rows, where they are about it; the examination's own
    replay is the first, and is not said twice."""
    if not _of_the_values(finding):
        return finding
    known = {row.get("name") for row in finding.experiments}
    rows: list[Mapping[str, Any]] = [
        experiment.row() for experiment in pattern.experiments if experiment.name not in known
    ]
    course = pattern.course
    if course is not None:
        rows += [
            {
                "name": f"{stretch.name} from step {course.start}",
                "outcome": stretch.outcome,
                "loss": stretch.last_loss,
                "seconds": stretch.seconds,
            }
            for stretch in sorted(course.stretches, key=lambda one: one.clip is not None)
        ]
    return replace(finding, experiments=(*finding.experiments, *rows))


def can_be_treated(finding: Finding) -> bool:
    """There are fixes to be tried, or samples to be found."""
    return bool(_remedies(finding)) or can_tell(finding, "values") or _of_an_exception(finding)


def _of_the_values(finding: Finding) -> bool:
    """The experiments on the step are about what the finding tells."""
    tried = _remedies(finding)
    return can_tell(finding, "values") and not (tried and _need_no_failure(tried))


def _of_an_exception(finding: Finding) -> bool:
    """One that single samples may have raised, and it is not known which."""
    in_step = finding.phase in ("forward", "backward") and finding.step is not None
    return in_step and can_tell(finding, "samples") and not finding.culprit.samples


def _remedies(finding: Finding) -> list[Remedy]:
    """What the finding's fixes would change."""
    return [fix.remedy for fix in finding.fixes if fix.remedy is not None]


def _need_no_failure(remedies: Sequence[Remedy]) -> bool:
    """All of them can be tried on a step that is healthy without the loss scale."""
    return all(isinstance(remedy, WITHOUT_FAILURE) for remedy in remedies)
