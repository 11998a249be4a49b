"""## What it checks
The last step chooses between a term made of a value and the same term made of that value clamped,
as PPO does with its ratio. The step is run again: values that lie beyond a bound and that the step
takes further out are counted. With the choice the right way round there is none. Where none is
counted, it is run again with the values put beyond their bounds, half of them on either side.

## Why it matters
The clamp is there to end the gain beyond its bounds. If the better of the two terms is taken, the
clamp acts only where it does harm: a policy runs away from the one that made its data, and
collapses. A wrong sign does the same: the smaller of both is the careful one only for what the
step raises.

## Example
    gain = torch.max(advantage * ratio, advantage * ratio.clamp(0.8, 1.2))
    loss = -gain.mean()

## Fix
    gain = torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2))

## See also
ND636 minimised-return, ND661 inverted-ratio; Schulman et al. 2017, Proximal policy optimization
algorithms, equation 7
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_MANY = 8  # values: the more are pushed out, the surer


@rule(
    "ND675",
    "pushed-out",
    "critical",
    "values beyond their bounds that the step pushes further out",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.pushed if inspection is not None else None
    if inspection is None or seen is None:
        return
    smaller = "min" in seen.chosen
    mends = ("turn the sign of that term", "take the larger of both")
    mend, other = mends if smaller else ("take the smaller of both", "turn the sign of that term")
    yield learning_claim(
        rule,
        location_key(seen.chosen_at) or ("bounds",),
        title="the step would push values further beyond their bounds"
        if seen.moved
        else f"the step pushes {seen.pushed} of {seen.outside} values further beyond their bounds",
        explanation="Of a term and the same term with its value clamped, the "
        f"{'smaller' if smaller else 'larger'} is taken, which is the better one for what the "
        f"optimizer is after: {seen.outside} of {seen.values} values "
        f"{'were put' if seen.moved else 'are'} beyond a bound, and the step takes {seen.pushed} "
        "of them further out. The clamp holds nothing back.",
        culprit=Culprit(kind="op", op=seen.chosen, location=seen.chosen_at),
        step=inspection.step,
        weight=confidence(0.85, 0.4 if seen.pushed >= _MANY and not seen.moved else 0.0),
        notes=[("pushed out", f"{seen.pushed} of {seen.outside} beyond a bound")],
        fix=f"{mend}, or {other}",
        standing=WIRED,
    )
