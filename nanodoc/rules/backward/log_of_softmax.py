"""## What it checks
The log of a softmax (directly, or after a cast, an index or a tiny offset) where a probability is
exactly 0.

## Why it matters
softmax underflows to 0 when a logit lies more than about 104 below the largest (float32; 17 in
float16). The log is −inf there, and the gradient NaN. log_softmax subtracts before it exponentiates
and never underflows.

## Example
    loss = -torch.log(torch.softmax(logits, -1))[range(n), y].mean()

## Fix
    loss = -torch.log_softmax(logits, -1)[range(n), y].mean()        # or F.cross_entropy(logits, y)

## See also
ND206 log-of-zero
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import LogSoftmax
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth
from nanodoc.rules.base import birth_claim, count
from nanodoc.rules.forward.domain import at_failure, probability_source
from nanodoc.rules.rewrite import log_softmax
from nanodoc.vocabulary.ops import LOGS, PROBABILITIES


@rule(
    "ND303",
    "log-of-softmax",
    "critical",
    "log(softmax(x)) collapses; log_softmax does not",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if site.short not in LOGS or probability_source(birth) != "softmax":
            continue
        at = at_failure(site)
        if site.short == "xlogy" or _masked_before(birth):
            # p·log(p) is 0 where p is; and where −inf was put into the scores, log_softmax gives it
            # back
            continue
        if at is None or not (at.zeros or (at.maximum is not None and abs(at.maximum) < 1e-30)):
            continue
        yield birth_claim(
            rule,
            evidence,
            birth,
            title="log of softmax collapses where a probability underflows to zero",
            explanation=f"softmax gave exactly 0 at {count(at.zeros or at.count, 'element')}, and "
            "its log "
            "is −inf; log_softmax computes the same in one step and stays finite.",
            exact=1.0,
            specificity=Specificity.SPECIAL,
            extra=[("probabilities that are 0", at.zeros)],
            fixes=[
                Fix(
                    title="use log_softmax",
                    patch=log_softmax(site),
                    confidence="machine" if log_softmax(site) else "likely",
                    remedy=LogSoftmax(location=site.location)
                    if site.location is not None
                    else None,
                )
            ],
        )


def _masked_before(birth: Birth) -> bool:
    """The softmax was given −inf: its zeros are meant."""
    softmax = next((op for op in birth.upstream if op.short in PROBABILITIES), None)
    return softmax is not None and any(fact.neginf for fact in softmax.inputs)
