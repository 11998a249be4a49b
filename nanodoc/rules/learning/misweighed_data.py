"""## What it checks
gpytorch's objectives for variational inference (`VariationalELBO`, `PredictiveLogLikelihood`) whose
`num_data` is at most half the number of samples in the loader's data set.

## Why it matters
The log-likelihood of the batch is a mean, and the KL divergence from the prior is divided by
`num_data`. With the batch size as `num_data`, that term is too large by the number of batches: the
model stays at its prior.

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
    "a variational objective with too small a num_data",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.inspection.objective if evidence.inspection is not None else None
    if found is None:
        return
    of_batch = " (the batch size)" if found.told == found.batch_size else ""
    yield learning_claim(
        rule,
        location_key(found.line) or ("objective", found.objective),
        title=f"{found.objective} has num_data={found.told}{of_batch}, but there are "
        f"{found.samples} samples",
        explanation="It divides the KL divergence from the prior by that number: the prior is "
        f"weighted {found.samples / found.told:.3g} times too much.",
        culprit=Culprit(kind="op", location=found.line),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 1 - found.told / found.samples),
        notes=[("num_data", found.told), ("samples in the data set", found.samples)],
        fix="num_data=len(loader.dataset)",
        standing=WIRED,
    )
