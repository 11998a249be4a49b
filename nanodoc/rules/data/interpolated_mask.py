"""## What it checks
Some samples of the data set that hold a picture and a mask of the same height and width are drawn
again when the run is over, in a process of their own, line by line: a line after which the mask
has, between the areas of two classes, values that it did not have before. It still has them when
the sample is ready. An info where the loss compares with nothing of the mask's shape.

## Why it matters
Half of class 0 and class 8 is class 4. The border of every object is labelled as something else.

## Example
    mask = F.interpolate(mask, size=256, mode="bilinear")

## Fix
    mask = F.interpolate(mask, size=256, mode="nearest")

## Options
A mask of floating-point numbers with two classes is not judged, as its values may be shares; nor a
mask that comes so from its file, or is opened and resized in one line.

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
    "a mask of classes is interpolated: values between two classes",
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
        "the areas of two classes and have a value of neither. Before this line no pixel had.",
        # the line was seen to make them; the more there are, the less are they thin objects
        weight=confidence(0.8, min(1.0, 10 * mask.share)),
        notes=[("mask", mask.mask), ("values", values), ("pixels", mask.pixels)],
        fix='resize and turn masks by their nearest values: mode="nearest", '
        "InterpolationMode.NEAREST, cv2.INTER_NEAREST",
    )
