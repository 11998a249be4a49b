"""What the rules about learning share: the calls of the last step, and claims on what does not
learn."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan

SHORTEST = 10
"""Steps: in fewer, nothing can be said to have not been learnt."""


def calls_of(evidence: Evidence) -> StepCalls | None:
    """The functions that the last step calls."""
    return evidence.inspection.calls if evidence.inspection is not None else None


def loss_call(calls: StepCalls, names: tuple[str, ...]) -> CallFacts | None:
    """The first of these losses that what was differentiated is made of."""
    reaching = calls.reaching_the_loss()
    return next((one for one in calls.calls if one.name in names and one.index in reaching), None)


def learning_claim(
    rule: Rule,
    root: tuple[object, ...],
    *,
    title: str,
    explanation: str,
    culprit: Culprit,
    weight: float,
    fix: str,
    step: int | None = None,
    phase: str = "forward",
    severity: str | None = None,
    notes: Iterable[tuple[str, object]] = (),
    specificity: Specificity = Specificity.SPECIAL,
    stage: Stage = Stage.LEARNING,
    position: int = 0,
    scope: Scope = Scope.CAUSE,
) -> Claim:
    """A claim with one fix; notes without a value are left out."""
    return Claim(
        root=root,
        specificity=specificity,
        stage=stage,
        position=position,
        scope=scope,
        finding=rule.finding(
            severity=severity or rule.severity,
            confidence=weight,
            title=title,
            explanation=explanation,
            culprit=culprit,
            phase=phase,
            step=step,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def at_call(call: CallFacts, evidence: Evidence) -> Culprit:
    """The user's line of a call as the culprit; where nanodoc itself calls the criterion, the line
    that made it."""
    site: SourceSpan | None = call.site or (evidence.criterion_site if not call.module else None)
    return Culprit(
        kind="op", op=call.name, module=call.module, module_type=call.module_type, location=site
    )


def op_of(call: CallFacts) -> OpFacts:
    """A call as an op, for what rewrites the user's expression."""
    return OpFacts(
        index=call.index,
        op=call.name,
        phase="forward",
        module=call.module,
        module_type=call.module_type,
        location=call.site,
    )
