"""## What it checks
At the end of the run, some samples of the data set with an image and a mask of the same height and
width, or with two images of the same thing, are drawn again in a separate process, with different
random numbers each time. Reported if the image is mirrored or rotated by a right angle while the
mask or the second image is unchanged or transformed differently. If the data set keeps image and
mask in arrays, both are filled with the same texture: after crops, shifts and rotations by any
angle, they must still match. Other labels are not checked. A mask that the loss does not use is an
info; two images that it does not compare are not reported. For modules to which the step itself
passes images and masks (augmentations of kornia, torchvision), their results for the last batch are
compared.

## Why it matters
The model learns to find objects where they are not. The loss falls, but stays too high.

## Example
    if random.random() < 0.5:
        image = image.flip(-1)
    return image, mask

## Fix
    if random.random() < 0.5:
        image, mask = image.flip(-1), mask.flip(-1)

## See also
ND119 changing-items
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import AugmentedApart
from nanodoc.facts.items import AS_IT_WAS, ELSEWHERE, UnpairedItem
from nanodoc.rules.base import location_key
from nanodoc.rules.data.batch_claims import compares_with, item_claim
from nanodoc.rules.learning.claims import WIRED, learning_claim
from nanodoc.vocabulary.calls import SUPERVISED

_PLACES = ((ELSEWHERE, ELSEWHERE),)


@rule(
    "ND120",
    "unpaired-transform",
    "critical",
    "an image is mirrored, rotated or cropped at random, but its mask is not",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    item = evidence.items.unpaired if evidence.items is not None else None
    if item is None:
        augmented = evidence.inspection.augmented if evidence.inspection is not None else None
        if augmented is not None:
            yield _in_the_step(rule, evidence, augmented)
        return
    compared = compares_with(evidence, item.mask_shape)
    if item.kind == "picture" and not _makes_one_of_the_other(evidence, item):
        return  # two views of one picture, as a contrastive loss has them
    beside = _beside(item)
    told = [f"the image {one}, the {beside} {other}" for one, other in item.turns[:3]]
    seen = f"Of draws of sample {item.index} with different random numbers, {item.apart} of " + (
        f"{item.pairs} pairs in which something was mirrored or rotated do not match: "
        + "; ".join(told)
        if item.turns != _PLACES
        else f"{item.pairs} show different places in image and mask: filled with the same texture "
        "in the data set, they do not match"
    )
    yield item_claim(
        rule,
        evidence,
        item.index,
        item.image,
        item.line,
        # a hole to be filled, or a part that nobody compares with, may lie anywhere
        severity="warning" if item.kind == "picture" else rule.severity if compared else "info",
        title=_title(item),
        explanation=f"{seen}.",
        # every pair of draws is an observation by itself
        weight=confidence(0.6, 1 - 0.8**item.pairs, 0.3 if item.line is not None else 0.0),
        notes=[("image", item.image), (beside, item.mask), ("pairs of draws", item.pairs)],
        fix="draw once, and apply the same transform to both parts of the sample",
    )


def _in_the_step(rule: Rule, evidence: Evidence, seen: AugmentedApart) -> Claim:
    first = seen.image_at.place if seen.image_at is not None else None
    return learning_claim(
        rule,
        location_key(seen.mask_at) or ("augmented",),
        title="images and masks of a batch are mirrored or rotated by different draws",
        explanation="In the last step one module got the images and then the masks, drew new "
        f"random numbers for each, and changed at least {seen.apart} of the masks."
        if seen.drawn
        else f"In the last step, {seen.apart} of {seen.samples} masks that were mirrored or "
        "rotated do not match their images.",
        culprit=Culprit(kind="data", location=seen.mask_at),
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, 1 - 0.8**seen.apart),
        notes=[
            ("the images at", first),
            ("masks changed" if seen.drawn else "masks that do not match", seen.apart),
        ],
        fix="draw once, and apply the same transform to both",
        standing=WIRED,
    )


def _makes_one_of_the_other(evidence: Evidence, item: UnpairedItem) -> bool:
    """The loss compares a part of the batch, of the second picture's shape, with what is made of
    another part, and not of it."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    for call in calls.calls if calls is not None else ():
        if call.name not in (*SUPERVISED, "sub") or len(call.arguments) < 2 or calls is None:
            continue
        for made, target in (call.arguments[:2], call.arguments[1::-1]):
            leaf = calls.leaf(target)
            if target.shape[1:] != item.mask_shape or leaf is None:
                continue
            if made.requires_grad and leaf.startswith("batch"):
                behind = {a.leaf for a in calls.behind(made)[1] if a.of_batch}
                if behind and leaf not in behind:
                    return True
    return False


def _title(item: UnpairedItem) -> str:
    images, masks = (set(turns) for turns in zip(*item.turns, strict=True))
    image, beside = f"the image {item.image}", f"the {_beside(item)} {item.mask}"
    if item.turns == _PLACES:
        return f"{image} and {beside} are cropped or shifted by different draws"
    if masks == {AS_IT_WAS}:
        return f"{image} is {item.turns[0][0]} at random, but {beside} is not"
    if images == {AS_IT_WAS}:
        return f"{beside} is {item.turns[0][1]} at random, but {image} is not"
    return f"{image} and {beside} are mirrored or rotated by different draws"


def _beside(item: UnpairedItem) -> str:
    return "mask" if item.kind == "mask" else "second image"
