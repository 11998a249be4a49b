"""## What it checks
A cross entropy with class weights, or a binary one with a `pos_weight`, that gives the most
frequent class in some of the last batches a greater weight than the least frequent one. Label maps
are not checked. A class of weight 0 is taken as left out on purpose.

## Why it matters
Weights should compensate for rare classes. These make them rarer still: the model does best by
never predicting them, and the loss looks better than it should.

## Example
    counts = torch.bincount(labels).float()
    criterion = nn.CrossEntropyLoss(weight=counts / counts.sum())

## Fix
    criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts)

## See also
ND109 class-imbalance, ND129 inverted-sampler
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import BINARY, CLASSIFICATION

_LABELS = 64  # of all batches that were looked at: by chance few are as uneven
_FEWEST = 3  # of the least frequent class
_CLEARLY = 10.0  # times as heavy


@rule(
    "ND131",
    "inverted-class-weights",
    "warning",
    "class weights that favour the frequent class",
    needs=("inspection",),
    thresholds={
        "frequent": Threshold(3.0, "times the labels of the least frequent class of the batch"),
        "heavier": Threshold(2.0, "times its weight"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for _, call in calls_into_the_loss(evidence):
        weights = call.options.get("weights") if call.name in (*CLASSIFICATION, BINARY) else None
        seen = call.notes.all_labels
        if not weights or seen is None or seen.labels < _LABELS:
            continue
        most, least = seen.top, seen.least
        if max(most, least) >= len(weights) or not weights[least] > 0:
            continue
        if most == least or seen.least_count < _FEWEST:
            continue
        often = seen.top_count / seen.least_count
        heavier = weights[most] / weights[least]
        if often < check.limit(evidence, "frequent") or heavier < check.limit(evidence, "heavier"):
            continue
        made = evidence.inspection.weights_at if evidence.inspection is not None else None
        culprit = at_call(call, evidence)
        yield learning_claim(
            rule,
            location_key(made or call.site) or ("class", "weights"),
            title=f"the class that is {often:.3g} times as frequent is weighted {heavier:.3g} "
            "times as much",
            explanation=f"In the last batches class {most} has {often:.3g} labels for each label "
            f"of class {least}, and in the loss a label of class {most} counts {heavier:.3g} "
            "times as much: the weights make the rare class rarer still.",
            culprit=replace(culprit, location=made or culprit.location),
            step=len(evidence.losses) - 1,
            weight=confidence(0.75, 0.4 if heavier >= _CLEARLY else 0.0),
            notes=[
                (f"weight of class {most}", f"{weights[most]:.3g}"),
                (f"weight of class {least}", f"{weights[least]:.3g}"),
            ],
            fix="use weights of 1 / (class frequency)",
            standing=WIRED,
        )
        return
