"""## What it checks
The first cross entropy, compared with ln C. Twice ln C or more is reported: as an info, or as a
warning if it has not come down to ln C by the end of the run. If the last layer's initial weights
are several times as wide as He initialisation, their line is reported, and ten times ln C is a
warning at once. Such a run is re-run from its first step, with all layers that are wider than He
initialisation scaled down to it; if it then ends far lower, that is a warning, at their line.

Of any single loss that one optimizer lowers: first weights that are at least eight times as wide as
torch's own (1 / sqrt(3 fan_in), an embedding's 1), where nearly all later steps are lower with
weights of that width.

## Why it matters
The model starts out confident in wrong answers and spends its first steps unlearning them.

## Example
    nn.init.normal_(self.head.weight)      # logits of ±16

## Fix
Smaller weights in the last layer, normalised inputs.

## See also
ND610 poor-initialisation
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import ParameterStats
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.rates import compared
from nanodoc.facts.trials import WideWeights
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    at_parameter,
    calls_of,
    learning_claim,
    loss_call,
)
from nanodoc.vocabulary.calls import CLASSIFICATION, FROM_ARRAYS

_PLATEAU = 30  # steps without any progress
_WIDE = 3.0  # times He's width


@rule(
    "ND611",
    "initial-loss",
    "warning",
    "the first loss is far above that of guessing",
    needs=("inspection",),
    thresholds={
        "times-chance": Threshold(2.0, "first loss over ln C"),
        "times-chance-warning": Threshold(
            10.0, "first loss over ln C that is an immediate warning"
        ),
    },
    preflight="initial loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    shown = evidence.pattern.wide if evidence.pattern is not None else None
    if shown is not None:
        yield _of_weights(rule, evidence, shown)
        return
    calls = calls_of(evidence)
    loss = loss_call(calls, CLASSIFICATION) if calls is not None else None
    if (
        loss is None
        or calls is None
        or not evidence.losses
        or loss.index not in calls.losses
        or loss.reduction != "mean"
    ):
        return
    at_once = check.limit(evidence, "times-chance-warning")
    limit = _least(calls, loss, check.limit(evidence, "times-chance"), at_once)
    chance = math.log(max(loss.classes, 1))
    began = evidence.losses[0]
    if chance <= 0 or not math.isfinite(began) or began < limit * chance:
        return
    last = statistics.median(evidence.losses[-5:])
    stuck = last >= chance and len(evidence.losses) >= _PLATEAU
    far = began >= at_once * chance
    wide = _wide_layer(calls, loss, evidence)
    if wide is None and limit == at_once:
        return  # positions may be made before the loop, too
    yield learning_claim(
        rule,
        ("initial-loss",),
        standing=Standing(scope=Scope.MODEL, specificity=Specificity.FALLBACK),
        title=f"the loss starts at {began:.3g}; guessing among {loss.classes} "
        f"classes gives ln {loss.classes} = {chance:.3g}",
        explanation="The untrained model is confident in wrong answers: its first outputs are "
        "too large, because of the scale of the initial weights or of the inputs."
        + (
            f" The initial values of {wide.name} are {wide.began_wide:.1f} times as wide as "
            "sqrt(2 / fan_in)."
            if wide is not None
            else ""
        )
        + (" It has not come down to chance since." if last >= chance else ""),
        culprit=at_call(loss, evidence) if wide is None else at_parameter(wide),
        severity="warning" if stuck or (far and wide is not None) else "info",
        step=0,
        weight=confidence(0.6, 0.4 if last >= chance else 0.1),
        notes=[("loss at step 0", began), ("ln C", chance), ("loss now", last)],
        fix="use smaller weights in the last layer, or normalise the inputs",
    )


def _of_weights(rule: Rule, evidence: Evidence, wide: WideWeights) -> Claim:
    """The claim on first weights with which the same steps end far higher."""
    losses = compared(evidence)
    more = wide.layers - 1
    others = f", and those of {count(more, 'more layer')} are too wide as well" if more else ""
    told = (
        f"the same {len(losses)} steps start at {wide.first_loss:.3g} and end at "
        f"{wide.last_loss:.3g} instead of {late_loss(losses):.3g}"
    )
    claim = learning_claim(
        rule,
        ("init",),
        standing=Standing(scope=Scope.CAUSE, specificity=Specificity.SPECIAL),
        title=f"the initial weights are too wide: the loss starts at {losses[0]:.3g}",
        explanation=f"The initial values of {wide.name} are {wide.times:.1f} times as wide as "
        f"{wide.usual}{others}. Scaled down to that width, {told}.",
        culprit=Culprit(
            kind="parameter",
            parameter=wide.name,
            module=wide.name.rpartition(".")[0],
            location=wide.line,
        ),
        severity="warning",
        step=0,
        # the more of the loss narrower ones take away, the less can it be chance
        weight=confidence(0.6, 0.9 * (1 - wide.last_loss / late_loss(losses))),
        notes=[
            ("loss at step 0", losses[0]),
            ("with narrower ones", wide.first_loss),
            ("loss of the last quarter", late_loss(losses)),
            ("with narrower weights, at the end", wide.last_loss),
        ],
        fix="",
    )
    fix = Fix(title="make the initial weights narrower", verified=True, outcome=told)
    return replace(claim, finding=replace(claim.finding, fixes=(fix,)))


def _least(calls: StepCalls, loss: CallFacts, usual: float, at_once: float) -> float:
    """From how many times chance on the loss is told: `usual` where its labels are a part of the
    batch, `at_once` where they come from outside of the step in another way. Positions, as
    contrastive losses compare with, are made in it."""
    made = calls.origin(loss.arguments[1]) if len(loss.arguments) > 1 else None
    if isinstance(made, ArgumentFacts):
        return usual if made.of_batch else at_once
    from_array = made is not None and made.name in FROM_ARRAYS and not made.arguments
    return at_once if from_array else math.inf


def _wide_layer(calls: StepCalls, loss: CallFacts, evidence: Evidence) -> ParameterStats | None:
    """The weights of the layer that makes the scores, where they began wide at a line of the
    user's."""
    made = calls.origin(loss.arguments[0])
    names = {a.parameter for a in made.arguments} if isinstance(made, CallFacts) else set()
    parameters = evidence.stats.parameters if evidence.stats is not None else ()
    return next(
        (
            parameter
            for parameter in parameters
            if parameter.name in names
            and (parameter.began_wide or 0.0) > _WIDE
            and parameter.initialised_at is not None
        ),
        None,
    )
