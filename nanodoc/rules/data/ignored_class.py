"""## What it checks
A cross entropy with one label per sample whose `ignore_index` is one of the classes, if some labels
have that number. Labels per position, where padding needs a number, are not checked.

## Why it matters
The class is never learned: its samples are left out of the loss, and the others are never
distinguished from it.

## Example
    nn.CrossEntropyLoss(ignore_index=0)       # class 0 is "cat"

## Fix
    nn.CrossEntropyLoss()

## See also
ND105 all-targets-ignored, ND110 padding-dominated
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND157",
    "ignored-class",
    "warning",
    "an ignore_index that is one of the classes",
    needs=("inspection", "data"),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    shapes = {leaf.path: leaf.shape for leaf in (evidence.data.leaves if evidence.data else ())}
    for calls, call in calls_into_the_loss(evidence):
        index, labels = call.options.get("ignore_index"), call.notes.labels
        if labels is None or not isinstance(index, int):
            continue
        classes, ignored, targets = labels.classes, labels.ignored, labels.targets or 0
        if not 0 <= index < classes or not 0 < ignored < targets or len(call.arguments) < 2:
            continue
        made = calls.origin(call.arguments[1])
        leaf = made.leaf if isinstance(made, ArgumentFacts) else None
        scores = calls.calls[call.index].arguments[0].shape
        # one label for each sample, as they lie in the batch
        if len(shapes.get(leaf or "", ())) != 1 or len(scores) != 2:
            continue
        inspection, culprit = evidence.inspection, at_call(call, evidence)
        if inspection is not None and inspection.ignoring_at is not None:
            culprit = replace(culprit, location=inspection.ignoring_at)
        yield learning_claim(
            rule,
            location_key(culprit.location) or ("ignored", index),
            title=f"class {index} is left out of the loss: ignore_index={index}",
            explanation=f"{ignored:.0f} of {targets:.0f} labels of the last batch are {index}, one "
            f"of the {classes:.0f} classes, and are ignored.",
            culprit=culprit,
            step=len(evidence.losses) - 1,
            # as many as a class has by chance, and more
            weight=confidence(0.6, min(ignored / targets * classes, 1.0) * 0.7),
            notes=[("ignored", ignored), ("labels", targets)],
            fix="leave ignore_index at −100, or give ignored labels a separate number",
            standing=WIRED,
        )
        return
