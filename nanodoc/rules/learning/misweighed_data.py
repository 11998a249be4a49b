"""## What it checks
Objectives of variational inference of gpytorch (`VariationalELBO`, `PredictiveLogLikelihood`) that
are told how many samples there are (`num_data`), where the data set of the loader has at least
twice as many.

## Why it matters
The log-likelihood of the batch is a mean, and the KL divergence from the prior is divided by
`num_data`. Told of a batch's size it weighs as many times too much as there are batches: the model
stays at its prior.

## Example
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=loader.batch_size)

## Fix
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(loader.dataset))

## See also
ND637 unbalanced-terms; Hensman et al. 2013, Gaussian Processes for Big Data, equation 4
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND656",
    "misweighed-data",
    "warning",
    "a variational objective that was told of too few samples",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.inspection.objective if evidence.inspection is not None else None
    if found is None:
        return
    of_batch = " (the size of a batch)" if found.told == found.batch_size else ""
    yield learning_claim(
        rule,
        location_key(found.line) or ("objective", found.objective),
        title=f"{found.objective} was told of {found.told} samples{of_batch}; there are "
        f"{found.samples}",
        explanation="It divides the KL divergence from the prior by that number: the prior weighs "
        f"{found.samples / found.told:.3g} times too much.",
        culprit=Culprit(kind="op", location=found.line),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 1 - found.told / found.samples),
        notes=[("num_data", found.told), ("samples of the data set", found.samples)],
        fix="num_data=len(loader.dataset)",
        standing=WIRED,
    )
