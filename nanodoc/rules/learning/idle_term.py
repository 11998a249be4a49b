"""## What it checks
Each additive term of each loss of the last step, in trainings with several optimizers: the
parameters that its gradients come to, and what becomes of these gradients. Reported if all of them
are cleared before an optimizer steps with them, while other terms of the same loss are trained on,
and if a call ends the gradients on the term's way to what these train.

## Why it matters
The term is a number that is added, and nothing more. An actor that is to please a critic learns
nothing of it if its action was drawn by `sample()`, which ends the gradients: they come to the
critic alone, whose own loss clears them.

## Example
    action = torch.distributions.Normal(mean, std).sample()
    (alpha * log_prob - critic(state, action)).mean().backward()
    for_actor.step()

## Fix
    action = torch.distributions.Normal(mean, std).rsample()

## See also
ND503 no-grad-region, ND622 discarded-gradients; Haarnoja et al. 2018, Soft actor-critic, equation 9
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim


@rule(
    "ND677",
    "idle-term",
    "critical",
    "a term of the loss that trains nothing",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    seen = inspection.idle_term if inspection is not None else None
    if calls is None or seen is None:
        return
    term = calls.calls[seen.call]
    cut = calls.calls[seen.cut]
    where = term.site.place if term.site is not None else term.name
    reached = f"{seen.reaches} parameters"
    if seen.reached is not None:
        reached = seen.reached + (f" and {seen.reaches - 1} more" if seen.reaches > 1 else "")
    yield learning_claim(
        rule,
        location_key(cut.site) or ("idle", term.index),
        title=f"a term of the loss trains nothing: its gradients end at {cut.name}",
        explanation=f"The term made by {term.name} at {where} has gradients for {reached}, and "
        "these are cleared before an optimizer steps with them. The optimizer that steps next "
        f"trains {seen.trained} others, which the rest of the loss reaches and this term does not: "
        f"{cut.name} gives on no gradient.",
        culprit=at_call(cut, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.9),
        notes=[("the term", f"{term.name} at {where}"), ("reaches", reached)],
        fix="let the gradients through there: rsample() for a draw, no detach() and no no_grad()",
        standing=WIRED,
    )
