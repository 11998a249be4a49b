"""## What it checks
At the end of the run, some samples of the data set with an image and a mask of the same height and
width are drawn again, in a separate process, line by line. Reported is a line after which the mask
has new values between the areas of two classes that remain in the finished sample. An info if the
loss compares nothing of the mask's shape.

## Why it matters
Half of class 0 and class 8 is class 4. The border of every object gets the label of a different
class.

## Example
    mask = F.interpolate(mask, size=256, mode="bilinear")

## Fix
    mask = F.interpolate(mask, size=256, mode="nearest")

## Options
Not checked: a floating-point mask with two classes, whose values may be fractions; a mask whose
file has such values already; a mask that is opened and resized in one line.

## See also
ND120 unpaired-transform
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import compares_with, item_claim


@rule(
    "ND126",
    "interpolated-mask",
    "warning",
    "a class mask is interpolated: values between two classes",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    mask = evidence.items.blurred if evidence.items is not None else None
    if mask is None:
        return
    values = ", ".join(f"{value:.4g}" for value in mask.values)
    yield item_claim(
        rule,
        evidence,
        mask.index,
        mask.mask,
        mask.line,
        severity=rule.severity if compares_with(evidence, mask.mask_shape) else "info",
        title=f"the mask has values between its classes since this line: {values}",
        explanation=f"{mask.pixels} pixels of sample {mask.index} ({mask.share:.1%}) lie between "
        "the areas of two classes and have the value of neither. Before this line, no pixel "
        "did.",
        # the line was seen to make them; the more there are, the less are they thin objects
        weight=confidence(0.8, min(1.0, 10 * mask.share)),
        notes=[("mask", mask.mask), ("values", values), ("pixels", mask.pixels)],
        fix='resize and rotate masks with nearest-neighbour interpolation: mode="nearest", '
        "InterpolationMode.NEAREST, cv2.INTER_NEAREST",
    )
