"""## What it checks
A loss that is bitwise the same in every step (of at least ten) while every gradient is exactly
zero. If the loss pairs samples by their labels and no two samples of a batch share one, the finding
says so.

## Why it matters
There is nothing to learn from. cross_entropy over a single class is the classic case.

## Example
    loss = F.cross_entropy(model(x), y)      # model(x) is (64, 1)

## Fix
    loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())

## Options
A hinge loss that is zero on some batches is fine.

## See also
ND501 cut-graph, ND603 dead-units
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Stage, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    at_call,
    calls_of,
    learning_claim,
    loss_call,
)
from nanodoc.vocabulary.calls import CLASSIFICATION


@rule(
    "ND621",
    "zero-loss",
    "critical",
    "a loss that is constant and has no gradient",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses, norms = evidence.losses, evidence.grad_norms
    if (
        len(losses) < SHORTEST
        or any(loss != losses[0] for loss in losses)
        or any(norm != 0 for norm in norms)
    ):
        return
    calls = calls_of(evidence)
    if calls is None or not calls.losses:  # nothing was differentiated
        return
    site = calls.calls[calls.losses[0]]
    single = loss_call(calls, CLASSIFICATION)
    severity = "critical"
    labels = _labels_without_pairs(calls)
    fix = (
        "check what the loss consists of: a clamp, a margin that is always met, a mask that "
        "keeps nothing"
    )
    if labels is not None:
        site = labels
        what = "no two samples of a batch share a label: there are no pairs, and the loss is 0"
        fix = "give samples that belong together, such as two views of one image, the same label"
    elif single is not None and single.classes == 1:
        site, what = single, f"{single.name} over a single class is always 0"
        fix = "for one output use binary_cross_entropy_with_logits"
    else:
        # rewards may be rare, and margins may be met
        severity = "warning" if losses[0] == 0 else "critical"
        what = (
            f"the loss is {'exactly 0' if losses[0] == 0 else f'the same {losses[0]:.6g}'} in "
            "every step, and so is every gradient"
        )
    yield learning_claim(
        rule,
        ("constant",),
        severity=severity,
        title=what,
        explanation=f"In {count(len(losses), 'step')} on different batches neither the loss nor "
        "the gradients changed: there is nothing to learn from.",
        culprit=at_call(site, evidence),
        step=0,
        weight=confidence(0.8, 0.5 if len(losses) > 20 else 0.2),
        standing=Standing(stage=Stage.LEARNING, position=-1),
        notes=[("loss", losses[0]), ("largest gradient norm", max(norms, default=0.0))],
        fix=fix,
    )


def _labels_without_pairs(calls: StepCalls) -> CallFacts | None:
    """The call that made the labels of a loss that pairs samples by them, where each label is that
    of one sample only; else the one that compares them with each other."""
    for call in calls.calls:
        if call.notes.paired_by_labels is False:
            made = calls.origin(call.arguments[1])
            return made if isinstance(made, CallFacts) and made.site is not None else call
    return None
