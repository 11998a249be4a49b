"""## What it checks
The labels of a language model's last step, beside its ids and the mask of its attention. The mask
counts a last token to each sequence, the token is that of the padding, too, and it is no label
anywhere, while the tokens before it are.

Silent without such a mask in the batch, where the token of the end is not that of the padding, and
where fewer than half of the sequences end with it (the others may be cut off).

## Why it matters
The model is never asked for the end of a sequence, and does not learn to stop: what it writes goes
on until the longest length.

## Example
    tokenizer.pad_token = tokenizer.eos_token
    labels[input_ids == tokenizer.pad_token_id] = -100    # the one end of each sequence, too

## Fix
    labels[attention_mask == 0] = -100

Or give the padding a token of its own.

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
    "a language model that is never asked for the end of a sequence",
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
        title="the end of the sequences is left out of the labels with their padding",
        explanation=f"{end.rows} of {end.of} sequences end with token {end.value}, which the "
        "attention mask counts to them and which is the padding behind it, too. It is no label "
        "anywhere: the model does not learn to stop.",
        culprit=Culprit(kind="data", location=place),
        step=inspection.step,
        weight=confidence(0.85, 0.4 if end.rows >= 4 else 0.0),
        notes=[
            ("labels compared", seen.labels),
            ("compared at", seen.at.place if seen.at is not None else None),
        ],
        fix="leave out the labels where the attention mask is 0 (not where the id is that of the "
        "padding), or give the padding a token of its own",
    )
