"""## What it checks
The labels of a language model's last step, beside the mask of its attention. In every sequence all
labels stand at the beginning, without a gap, and the tokens behind them, which the mask counts to
the sequence and which are not all the same, are left out.

Silent without such a mask in the batch, and for fewer than four sequences.

## Why it matters
Instructions are usually left out of the labels, and their answers asked for. The other way round
the model learns to write the questions, and no answer.

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
    "a language model that is asked for the beginning of its sequences only",
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
        title="the labels ask for the beginning of each sequence, and leave out the rest",
        explanation=f"In all {prompts.rows} sequences the labels end early, after "
        f"{prompts.asked:.0%} of the tokens. If these are prompts, they are learnt, and the "
        "answers are not.",
        culprit=Culprit(kind="data", location=place),
        step=inspection.step,
        weight=confidence(0.8, 0.4 if prompts.rows >= 8 else 0.0),
        notes=[
            ("labels compared", seen.labels),
            ("compared at", seen.at.place if seen.at is not None else None),
        ],
        fix="leave out the labels of the prompt, and keep those of what follows",
    )
