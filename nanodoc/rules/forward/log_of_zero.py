"""## What it checks
log, log2, log10, log1p, logit or xlogy was evaluated at its pole (log of exactly 0), and the −inf
reached the loss.

## Why it matters
A sigmoid rounds to exactly 0 below about −104 in float32 (−17 in float16), and to exactly 1 above
17; a hand-written cross entropy hits this as soon as the model is confident. 0 · log(0) is NaN.

## Example
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()

## Fix
Use the loss that takes logits; where a probability is needed, clamp it with an eps that the dtype
can represent.

## See also
ND303 log-of-softmax, ND210 vanishing-epsilon
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import OpFacts, ValuesAt
from nanodoc.rules.base import birth_claim, count, values
from nanodoc.rules.forward.domain import at_failure, forward_births, probability_source
from nanodoc.rules.forward.guards import guards
from nanodoc.vocabulary.ops import LOGS


@rule(
    "ND206",
    "log-of-zero",
    "critical",
    "log(p) with p underflowed to 0, hand-written cross entropy",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in forward_births(evidence):
        site = birth.site
        if site.short not in LOGS:
            continue
        at = at_failure(site, 1 if site.short == "xlogy" else 0)
        if at is None or not _is_log_pole(site, at):
            continue
        source = probability_source(birth)
        advice = [
            Fix(
                title="use the loss that takes logits (binary_cross_entropy_with_logits, "
                "logsigmoid)",
                confidence="likely",
            )
        ]
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of zero is −inf",
            explanation=f"The argument of {site.short} (from {site.inputs[0].label}) is exactly "
            f"{'−1' if site.short == 'log1p' else '0'} at {count(at.count, 'element')}"
            + (f"; it comes from {source}, which underflows or rounds there." if source else "."),
            exact=1.0,
            extra=[
                ("bad elements", at.count),
                ("input at the bad elements", values(at.minimum, at.maximum)),
            ],
            fixes=[
                *(advice if source == "sigmoid" else []),
                *guards(site, f"keep the argument of {site.short} away from its pole"),
            ],
        )


def _is_log_pole(site: OpFacts, at: ValuesAt) -> bool:
    if site.short == "log1p":
        return at.minimum == -1.0
    if site.short == "logit":
        return at.zeros > 0 or at.maximum == 1.0
    return at.zeros > 0
