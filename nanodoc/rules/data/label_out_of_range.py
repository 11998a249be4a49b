"""## What it checks
The integer targets of cross_entropy and nll_loss, compared with the number of classes before the
call; `ignore_index` is not a label.

## Why it matters
On the CPU the message gives one value and no position; on a GPU a device-side assert kills the
process.

## Example
    labels = torch.tensor([1, 2, 3])     # numbered from 1
    loss = F.cross_entropy(logits, labels)   # logits of 3 classes

## Fix
    loss = F.cross_entropy(logits, labels - 1)

## Options
`--no-preflight` disables the check of the first step.

## See also
ND102 index-out-of-range, ND105 all-targets-ignored
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count
from nanodoc.rules.data.range_claims import range_claim

_IGNORED = 255  # in masks


@rule(
    "ND103",
    "label-out-of-range",
    "critical",
    "a class label beyond the model's classes",
    preflight="labels",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = next((range_ for range_ in evidence.ranges if range_.label), None)
    if found is not None:
        one_based = found.minimum == found.maximum == found.size and found.least >= 1
        yield range_claim(
            rule,
            evidence,
            found,
            title=f"label {found.value} at {list(found.position)}, but the model has {found.size} "
            f"classes (0…{found.size - 1})",
            explanation=f"{count(found.count, 'label')} of {list(found.shape)} "
            f"{'is' if found.count == 1 else 'are'} out of range"
            + (f", from {found.minimum} to {found.maximum}." if found.count > 1 else ".")
            + (" Labels numbered from 1 end one too high." if one_based else ""),
            cause="" if one_based else _cause(found),
            fix="number the labels from 0 (y - 1)"
            if one_based
            else "use ignore_index for labels that mean no class"
            if found.maximum < 0
            else f"use an output of at least {found.maximum + 1} classes, or other labels for "
            "these samples",
        )


def _cause(found: RangeFacts) -> str:
    """The usual cause of such labels."""
    if found.maximum < 0 or found.minimum == found.maximum == _IGNORED:
        return "the value that stands for no label is not the loss's ignore_index"
    if found.maximum == found.size:
        return "labels start at 1, or the last layer has one output too few"
    return "num_classes was left at a default, or the data has more classes than the model"
