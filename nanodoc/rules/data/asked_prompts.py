"""## What it checks
The labels of a language model's last step, compared with its attention mask. In every sequence, all
labels are at the beginning, without a gap, and the tokens after them, which the mask includes and
which are not all equal, have no labels.

Not checked without such a mask in the batch, or with fewer than four sequences.

## Why it matters
Usually the instructions are left out of the labels and the answers are kept. The other way round,
the model learns to write the questions but no answers.

## Example
    labels[:, prompt_length:] = -100

## Fix
    labels[:, :prompt_length] = -100

## See also
ND105 all-targets-ignored, ND144 unasked-end
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, learning_claim


@rule(
    "ND145",
    "asked-prompts",
    "warning",
    "labels only for the beginning of the sequences",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.sequence if inspection is not None else None
    prompts = seen.prompts if seen is not None else None
    if inspection is None or seen is None or prompts is None:
        return
    place = seen.left_out_at or seen.at
    yield learning_claim(
        rule,
        location_key(place) or ("labels", "prompts"),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title="only the beginning of each sequence has labels",
        explanation=f"In all {prompts.rows} sequences the labels end early, after "
        f"{prompts.asked:.0%} of the tokens. If these are prompts, the model learns the "
        "prompts and not the answers.",
        culprit=Culprit(kind="data", location=place),
        step=inspection.step,
        weight=confidence(0.8, 0.4 if prompts.rows >= 8 else 0.0),
        notes=[
            ("labels compared", seen.labels),
            ("compared at", seen.at.place if seen.at is not None else None),
        ],
        fix="leave out the labels of the prompt, and keep those of the tokens after it",
    )
