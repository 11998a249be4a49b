"""## What it checks
Parameters that two optimizers hold and that both move in one step, where one of the two holds no
others. The last steps are run again, and the gradients are compared that these parameters have when
either optimizer steps. Reported if they point in opposite directions in each of these steps. Tasks
that share a trunk, each with its own head, are left alone.

## Why it matters
One optimizer undoes what the other does: a discriminator that the generator's optimizer moves, too,
is made to believe the generator, and a critic that the actor's optimizer moves praises whatever the
actor does. Both losses may fall, and nothing is learnt.

## Example
    to_make = torch.optim.Adam([*generator.parameters(), *discriminator.parameters()])
    to_judge = torch.optim.Adam(discriminator.parameters())

## Fix
    to_make = torch.optim.Adam(generator.parameters())

## See also
ND506 parameter-not-in-optimizer; Goodfellow et al. 2014, Generative adversarial nets, algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_FEWEST = 2  # steps: of one alone, two losses may disagree by chance
_ENOUGH = 4


@rule(
    "ND676",
    "pulled-apart",
    "critical",
    "two optimizers that pull the same parameters apart",
    needs=("inspection",),
    thresholds={"cosine": Threshold(-0.5, "between the gradients, in each of the steps")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.pulled_apart if inspection is not None else None
    if inspection is None or seen is None or len(seen.cosines) < _FEWEST:
        return
    if max(seen.cosines) > check.limit(evidence, "cosine"):
        return
    # the one that holds others as well was given them on top of its own
    more = seen.optimizers[seen.held[1] >= seen.held[0]]
    sites = evidence.optimizer_sites
    site = sites[more] if more < len(sites) else None
    mean = sum(seen.cosines) / len(seen.cosines)
    yield learning_claim(
        rule,
        location_key(site) or ("pulled", more),
        title=f"two optimizers pull {seen.shared} parameters in opposite directions",
        explanation=f"{seen.shared} parameters are held by two optimizers, and both move them in "
        f"each step. In {len(seen.cosines)} of the last steps the gradients that the two step with "
        f"have a cosine of {mean:.2f}, and never one above {max(seen.cosines):.2f}: what one "
        "optimizer does, the other undoes.",
        culprit=Culprit(kind="optimizer", location=site),
        step=inspection.step,
        phase="optimizer",
        weight=confidence(0.8, 0.5 if len(seen.cosines) >= _ENOUGH else 0.0),
        notes=[
            ("parameters of each optimizer", f"{seen.held[0]}, {seen.held[1]}"),
            ("cosines", ", ".join(f"{one:.2f}" for one in seen.cosines)),
        ],
        fix="give each optimizer only the parameters that its own loss is to train",
        standing=WIRED,
    )
