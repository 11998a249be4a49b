"""## What it checks
The first batch of each pass over data that the script does not train on, compared with its first
training batch: the values of a part have a standard deviation that is more than 2.5 times larger or
smaller for images, or 20 times for other data. Batches of fewer than eight samples are not checked.

## Why it matters
The model sees different inputs from those it was trained on, for example if one of two transforms
lacks its normalisation. The validation is bad, and training looks as if it overfitted.

## Example
    train = Pictures(train_files, Compose([ToTensor(), Normalize(mean, std)]))
    valid = Pictures(valid_files, ToTensor())

## Fix
    valid = Pictures(valid_files, Compose([ToTensor(), Normalize(mean, std)]))

## See also
ND128 split-overlap, ND642 validated-in-training-mode
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_FAR = 10.0  # times the other


@rule(
    "ND135",
    "validation-scale",
    "warning",
    "a validation whose inputs have a different scale",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.scale if evidence.asides is not None else None
    if found is None:
        return
    own, other = found.training, found.validation
    times = max(own[1], other[1]) / min(own[1], other[1])
    yield learning_claim(
        rule,
        location_key(found.made_at) or ("data", rule.name),
        title=f"the validation's {found.part} are {times:.3g} times as "
        f"{'large' if other[1] > own[1] else 'small'} as the training's",
        explanation=f"A training batch has a mean of {own[0]:.3g} and a standard deviation of "
        f"{own[1]:.3g} there, a validation batch {other[0]:.3g} and {other[1]:.3g}: the two "
        "are preprocessed differently.",
        culprit=Culprit(kind="data", location=found.made_at or evidence.data_site),
        phase="data",
        weight=confidence(0.75, 0.6 if times > _FAR else 0.0),
        notes=[
            ("part", found.part),
            ("training", f"{own[0]:.3g} ± {own[1]:.3g}"),
            ("validation", f"{other[0]:.3g} ± {other[1]:.3g}"),
        ],
        fix="preprocess the validation inputs like the training inputs",
        standing=WIRED,
    )
