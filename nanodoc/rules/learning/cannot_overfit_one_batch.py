"""## What it checks
Only with `--overfit-batch`: the run trains only on its first batch, for at least 50 steps. The loss
must fall to less than half, with the learning rate as it is or ten times as high. The same steps
are then repeated from the same weights with the inputs zeroed (if inputs and targets can be told
apart): the loss must end higher.

## Why it matters
A model that cannot fit one batch will not fit a data set. A model that fits it without its inputs
has not learned from them.

## Example
    nanodoc run train.py:build --overfit-batch --steps 200

## Fix
A learning rate ten times larger or smaller; then follow the gradient: `nanodoc check-grad-graph`.

## Options
`--steps`.

## See also
ND607 loss-not-decreasing, ND501 cut-graph
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import OverfitFacts
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_of,
    learning_claim,
)

_ENOUGH = 50  # steps that learning a batch by heart may take

_GAIN = 1.1  # times what the loss gains without inputs


@rule(
    "ND617",
    "cannot-overfit-one-batch",
    "critical",
    "a single batch is not memorised",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    overfit = evidence.overfit
    if overfit is None or not overfit.asked:
        return
    if overfit.fits:
        if _blind(overfit):
            yield _without_inputs(rule, evidence, overfit)
        return
    if overfit.steps < _ENOUGH or (
        overfit.faster_last is not None and overfit.faster_last < 0.5 * overfit.first
    ):
        return  # too few steps, or too small ones: the vital signs say how far it came
    yield _not_fitted(rule, evidence, overfit)


def _blind(overfit: OverfitFacts) -> bool:
    """The loss falls about as far with the inputs zeroed."""
    return overfit.zeroed_last is not None and overfit.first - overfit.last < _GAIN * (
        overfit.first - overfit.zeroed_last
    )


def _not_fitted(rule: Rule, evidence: Evidence, overfit: OverfitFacts) -> Claim:
    """The loss came down too little."""
    return learning_claim(
        rule,
        ("one-batch",),
        standing=Standing(scope=Scope.MODEL),
        title=f"a single batch is not fitted: the loss goes from {overfit.first:.4g} to "
        f"{overfit.last:.4g} in {overfit.steps} steps",
        severity="warning",
        explanation="A model with enough parameters memorises a single batch. This one doesn't: "
        "something between inputs, model, loss and optimizer is not connected, or the loss "
        "has a floor (noise drawn in each step, two networks that compete).",
        culprit=_culprit(evidence),
        step=overfit.steps - 1,
        weight=confidence(
            0.5,
            0.5 if overfit.steps >= 50 else 0.1,
            0.4 if overfit.last > 0.9 * overfit.first else 0.0,
        ),
        notes=_notes(overfit),
        fix="try more steps (--steps) or a learning rate ten times larger or smaller; then "
        "check-grad-graph",
    )


def _without_inputs(rule: Rule, evidence: Evidence, overfit: OverfitFacts) -> Claim:
    """The loss came down, and does without its inputs as well."""
    return learning_claim(
        rule,
        ("one-batch",),
        standing=Standing(scope=Scope.MODEL),
        title=f"the loss falls just as far with {', '.join(overfit.zeroed)} zeroed: the inputs "
        "are not used",
        explanation=f"It ends at {overfit.last:.4g} with the inputs and at "
        f"{overfit.zeroed_last:.4g} without. The model learns only the targets' distribution.",
        culprit=_culprit(evidence),
        step=overfit.steps - 1,
        weight=confidence(
            0.6,
            0.5 if overfit.zeroed_last is not None and overfit.zeroed_last <= overfit.last else 0.1,
        ),
        notes=_notes(overfit),
        severity="warning",
        fix="follow the inputs: a slice, a mask or a normalisation may drop them; nanodoc "
        "check-grad-graph shows the modules they pass through",
    )


def _culprit(evidence: Evidence) -> Culprit:
    """The call that made the loss."""
    calls = calls_of(evidence)
    site = calls.calls[calls.losses[0]] if calls is not None and calls.losses else None
    return at_call(site, evidence) if site is not None else Culprit(kind="op")


def _notes(overfit: OverfitFacts) -> list[tuple[str, object]]:
    return [
        ("loss", f"{overfit.first:.4g} → {overfit.last:.4g}"),
        ("at ten times the rate", overfit.faster_last),
        ("with inputs zeroed", overfit.zeroed_last),
        ("steps", overfit.steps),
    ]
