"""## What it checks
What each network of a script is given while it is trained, and what while it is only asked: in a
validation between the steps or after them, or by an agent that acts. For each position of a sample,
the mean and the deviation over many samples are compared. Reported if the two differ clearly, and
are alike once one of them is mirrored along an axis or transposed. Inputs that look the same both
ways, as where the training turns half of its images at random, are left alone. So are ids, and
inputs that are alike with the other sign, as where a trend has turned.

## Why it matters
The network learns inputs that it never meets in use. The training loss falls as it should.

## Example
    loss = F.cross_entropy(model(images.flip(-1)), labels)
    ...
    accuracy = (model(images).argmax(1) == labels).float().mean()

## Fix
Prepare the inputs in one function that both use.

## See also
ND135 validation-scale, ND120 unpaired-transform
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.asides import TurnedFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, calls_of, learning_claim
from nanodoc.vocabulary.calls import TURNING

# which of the calls before a network may be the one, by the first word of what was found
_MAY_TURN = {
    "flipped": ("flip", "fliplr", "flipud"),
    "transposed": TURNING,
}
_SURE = 10.0  # times the distance of two halves of the same samples


@rule(
    "ND176",
    "turned-inputs",
    "warning",
    "a network whose inputs are turned in training and not in use",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    seen = evidence.asides.turned if evidence.asides is not None else None
    if seen is None:
        return
    made_at = _turned_at(evidence, seen)
    site = made_at or seen.asked_at or seen.trained_at
    name = seen.network or "the model"
    shape = "x".join(map(str, seen.shape))
    yield learning_claim(
        rule,
        location_key(site) or ("data", rule.name),
        title=f"{name} is trained on inputs that are {seen.how}, beside those it is asked with",
        explanation=f"Over {seen.samples[0]} samples of training "
        f"({_place(seen.trained_at)}) and {seen.samples[1]} others ({_place(seen.asked_at)}), the "
        f"{shape} values of a sample are {seen.apart:.2g} squared deviations apart as they are, "
        f"and {seen.turned_apart:.2g} with one side {seen.how}. Chance explains {seen.chance:.2g}.",
        culprit=Culprit(kind="data", location=site),
        phase="data",
        weight=confidence(0.75, 0.5 if seen.apart > _SURE * seen.chance else 0.0),
        notes=[
            ("apart as they are", f"{seen.apart:.3g}"),
            (f"apart with one {seen.how}", f"{seen.turned_apart:.3g}"),
            ("apart by chance", f"{seen.chance:.3g}"),
            ("called in training", _place(seen.trained_at)),
            ("called aside", _place(seen.asked_at)),
        ],
        fix="prepare the inputs of training and of use in the same way",
        standing=WIRED,
    )


def _turned_at(evidence: Evidence, seen: TurnedFacts) -> SourceSpan | None:
    """The call of the step, before the network, that may be what turns its inputs."""
    calls = calls_of(evidence)
    if calls is None:
        return None
    wanted = _MAY_TURN[seen.how.partition(" ")[0]]
    inside = [c for c in calls.calls if c.module is not None and c.requires_grad and c.arguments]
    first = next((c for c in inside if (c.module or "").startswith(seen.network)), None)
    behind = calls.behind(first)[0] if first is not None else set()
    for index in sorted(behind):
        call = calls.calls[index]
        if call.name in wanted and call.module is None and call.site is not None:
            return call.site
    return seen.trained_at if first is None else None


def _place(site: SourceSpan | None) -> str:
    return site.place if site is not None else "a line that is not known"
