"""## What it checks
Inputs and labels that the source code puts into different random orders: one is indexed by a
permutation, or shuffled in place, and the other is not, or by a separate draw. nanodoc reads the
functions that set up the training and those that its step runs, and reports only if a loss compares
the output with a part of the batch.

Not reported if both are drawn with the same seed, if the permutation is also used elsewhere (it may
be undone), or if one of the two is made from the other (negative samples, mixup).

## Why it matters
The labels no longer belong to their inputs. The loss stays at the level of guessing, or the model
memorises the samples.

## Example
    order = torch.randperm(len(x))
    x = x[order]                                    # and y?
    dataset = TensorDataset(x, y)

## Fix
    x, y = x[order], y[order]

## See also
ND120 unpaired-transform, ND151 mixed-repeats
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_NO_LOWER = 0.9  # times the first loss


@rule(
    "ND153",
    "shuffled-apart",
    "critical",
    "inputs and labels in different random orders",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.inspection.shuffled if evidence.inspection is not None else None
    if found is None:
        return
    left = (
        f"{found.other} gets a separate one ({found.other_line.place})"
        if found.other_line is not None
        else f"{found.other} keeps its order"
    )
    yield learning_claim(
        rule,
        location_key(found.line) or ("shuffled", found.name),
        title=f"{found.name} is put into a random order, but {found.other} "
        f"{'into a different one' if found.other_line is not None else 'is not'}",
        explanation=f"The rows of {found.name} are put into a random order here; {left}. Both are "
        "read row by row afterwards, so labels belong to other samples.",
        culprit=Culprit(kind="data", location=found.line),
        step=len(evidence.losses) - 1,
        # where the labels belong to others, there is little to learn
        weight=confidence(0.7, 0.5 if _stays(evidence.losses) else 0.0),
        notes=[("the other", found.other_line.place if found.other_line is not None else None)],
        fix=f"index {found.name} and {found.other} with the same permutation",
        standing=WIRED,
    )


def _stays(losses: Sequence[float]) -> bool:
    return len(losses) > 1 and late_loss(losses) > _NO_LOWER * losses[0]
