"""What the rules about learning share: the calls of the last step, and claims on what does not
learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NotRequired, Unpack

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import ParameterStats
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import Told

SHORTEST = 10
"""Steps: in fewer, nothing can be said to have not been learnt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a claim about learning stands beside other claims: the fields of `Claim` of these
    names."""

    specificity: Specificity = Specificity.SPECIAL
    stage: Stage = Stage.LEARNING
    position: int = 0
    scope: Scope = Scope.CAUSE


_LEARNING = Standing()

WIRED = Standing(stage=Stage.WIRING, specificity=Specificity.EXACT)
"""What the calls of a step, or its data, show by themselves, however the training goes."""


class Seen(Told):
    """What a finding about learning says, and where it was seen: in the forward pass, where no
    phase is given."""

    culprit: Culprit
    step: NotRequired[int | None]
    phase: NotRequired[str]


def calls_of(evidence: Evidence) -> StepCalls | None:
    """The functions that the last step calls."""
    return evidence.inspection.calls if evidence.inspection is not None else None


def calls_into_the_loss(evidence: Evidence) -> Iterator[tuple[StepCalls, CallFacts]]:
    """(all calls of the last step, one that the loss is made of and that has arguments)"""
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index in reaching and call.arguments:
            yield calls, call


def loss_call(calls: StepCalls, names: tuple[str, ...]) -> CallFacts | None:
    """The first of these losses that what was differentiated is made of."""
    reaching = calls.reaching_the_loss()
    return next(
        (call for call in calls.calls if call.name in names and call.index in reaching), None
    )


def learning_claim(
    rule: Rule,
    root: tuple[object, ...],
    *,
    weight: float,
    fix: str | Fix,
    notes: Iterable[tuple[str, object]] = (),
    standing: Standing = _LEARNING,
    **seen: Unpack[Seen],
) -> Claim:
    """A claim with one fix; notes without a value are left out."""
    return Claim(
        root=root,
        specificity=standing.specificity,
        stage=standing.stage,
        position=standing.position,
        scope=standing.scope,
        finding=rule.finding(
            **{"phase": "forward", "step": None, **seen},
            confidence=weight,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(Fix(title=fix, confidence="likely") if isinstance(fix, str) else fix,),
        ),
    )


def at_call(call: CallFacts, evidence: Evidence) -> Culprit:
    """The user's line of a call as the culprit; of a layer in a Sequential, the line that made the
    layer, and where nanodoc itself calls the criterion, the one that made that."""
    site: SourceSpan | None = call.layer_at or call.site
    if site is None and not call.module:
        site = evidence.criterion_site
    return Culprit(
        kind="op", op=call.name, module=call.module, module_type=call.module_type, location=site
    )


def at_parameter(parameter: ParameterStats) -> Culprit:
    """The user's line that gave a parameter its values as the culprit."""
    return Culprit(
        kind="parameter",
        parameter=parameter.name,
        module=parameter.name.rpartition(".")[0],
        module_type=parameter.module_type,
        location=parameter.initialised_at,
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
