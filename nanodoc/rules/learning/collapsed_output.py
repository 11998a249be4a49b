"""## What it checks
Whether the model's output is the same for all samples of a batch although their inputs differ. At
the end of the run, its last batch and up to three earlier ones are run once more with the final
weights.

## Why it matters
The model has become a constant.

## Fix
It is usually the effect of something else in the report: dead or saturated layers, a softmax over
the batch.

## See also
ND603 dead-units, ND604 saturated-activations
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    learning_claim,
)


@rule(
    "ND618",
    "collapsed-output",
    "critical",
    "the same output whatever the input",
    needs=("inspection",),
    thresholds={
        "spread": Threshold(
            1e-06, "largest difference between samples, relative to the largest output"
        )
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or len(evidence.losses) < SHORTEST:
        return
    if evidence.leak is not None and evidence.leak.unread:
        return  # ND513 names the layer where the samples are lost
    out = inspection.output
    if out.batch_size < 4 or not out.inputs_differ or out.spread > check.limit(evidence, "spread"):
        return
    yield learning_claim(
        rule,
        ("collapsed",),
        standing=Standing(scope=Scope.MODEL, specificity=Specificity.FALLBACK),
        title=f"the model returns the same output for all {out.batch_size} samples of a batch",
        explanation=f"Their inputs differ, but the outputs differ by only {out.spread:.1g} of "
        "their size. What distinguishes the samples is lost on the way.",
        culprit=Culprit(kind="module", module=""),
        severity="critical" if out.spread == 0 else "warning",
        step=inspection.step,
        weight=confidence(0.8, 0.4 if out.spread == 0 else 0.1),
        notes=[("difference between samples", out.spread), ("batch size", out.batch_size)],
        fix="check for dead or saturated layers, for a softmax or mean over the batch, and the "
        "scale of the inputs",
    )
