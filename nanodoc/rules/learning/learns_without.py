"""## What it checks
A training whose loss is as low with the targets of other samples: its predictions have nothing to
do with their targets. Its first 150 steps are run again from step 0 with one call made in another
way: a call that puts rows of a tensor in another order is left out, a softmax is taken along
another axis. Reported if the same steps then end at less than 0.8 of the loss.

## Why it matters
Nothing fails, and the loss may even fall to what guessing costs. The labels belong to other
samples, or the call mixes what must stay apart.

## Example
    loss = F.cross_entropy(model(x), y.roll(1, 0))

## Fix
    loss = F.cross_entropy(model(x), y)

## See also
ND607 loss-not-decreasing, ND630 held-back-updates
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import learning_claim
from nanodoc.vocabulary.calls import SOFTMAXES


@rule(
    "ND672",
    "learns-without",
    "critical",
    "a call without which a training learns that learns nothing",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.pattern.without if evidence.pattern is not None else None
    inspection = evidence.inspection
    if found is None or inspection is None:
        return
    pairing, apart = inspection.unlearnt, inspection.rows_apart
    if pairing is not None:
        why = (
            f"The last step's {pairing.function} is {pairing.own:.3g}, and with the targets of "
            f"other samples {pairing.others:.3g}: the predictions say nothing of theirs."
        )
    elif apart is not None:
        why = (
            f"The rows that {apart.taken} gives here are those of other samples than what "
            f"{apart.combined} combines them with."
        )
    else:
        return
    axis = found.op in SOFTMAXES
    what = "inputs and labels" if pairing is not None else "what is combined"
    title = (
        f"with {found.op} {found.instead} the training learns; with {found.was} it learns nothing"
        if axis
        else f"{found.op} makes {what} belong to other samples"
    )
    changed = found.instead if axis else f"without {found.op}"
    yield learning_claim(
        rule,
        location_key(found.location) or ("without",),
        title=title,
        explanation=f"{why} {changed[0].upper()}{changed[1:]}, the same early steps end at a far "
        "lower loss.",
        culprit=Culprit(kind="op", op=found.op, location=found.location),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 0.8 * (1 - found.without / found.loss)),
        notes=[
            ("late loss", f"{found.loss:.4g}"),
            (f"late loss {changed}", f"{found.without:.4g}"),
        ],
        fix=Fix(
            title=f"{found.op} {found.instead}" if axis else f"leave {found.op} out here",
            verified=True,
            outcome=f"the same {found.steps} steps end at loss {found.without:.3g} instead of "
            f"{found.loss:.3g}",
        ),
    )
