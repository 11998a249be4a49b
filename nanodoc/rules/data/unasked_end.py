"""## What it checks
The labels of a language model's last step, compared with its ids and its attention mask. The mask
includes a last token in each sequence that is also the padding token, and this token is never a
label, while the tokens before it are.

Not checked without such a mask in the batch, if the end token is not the padding token, or if fewer
than half of the sequences end with it (the others may be truncated).

## Why it matters
The model is never trained on the end of a sequence and does not learn to stop: it generates up to
the maximum length.

## Example
    tokenizer.pad_token = tokenizer.eos_token
    labels[input_ids == tokenizer.pad_token_id] = -100    # also the end of each sequence

## Fix
    labels[attention_mask == 0] = -100

Or give the padding a separate token.

## See also
ND105 all-targets-ignored, ND145 asked-prompts
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
    "ND144",
    "unasked-end",
    "warning",
    "a language model that is never trained on the end of a sequence",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.sequence if inspection is not None else None
    end = seen.unasked_end if seen is not None else None
    if inspection is None or seen is None or end is None:
        return
    place = seen.left_out_at or seen.at
    yield learning_claim(
        rule,
        location_key(place) or ("labels", "end"),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title="the end token is left out of the labels together with the padding",
        explanation=f"{end.rows} of {end.of} sequences end with token {end.value}, which the "
        "attention mask includes and which is also the padding after it. It is never a "
        "label: the model does not learn to stop.",
        culprit=Culprit(kind="data", location=place),
        step=inspection.step,
        weight=confidence(0.85, 0.4 if end.rows >= 4 else 0.0),
        notes=[
            ("labels compared", seen.labels),
            ("compared at", seen.at.place if seen.at is not None else None),
        ],
        fix="leave out the labels where the attention mask is 0 (not where the id is the "
        "padding), or give the padding a separate token",
    )
