"""## What it checks
Labels of a CTC loss, within their lengths, that are the loss's blank.

## Why it matters
The blank means "no label here". A label with the same number cannot be distinguished from it: that
symbol is never learned, and the loss of such a target is meaningless.

## Example
    index = {letter: i for i, letter in enumerate(alphabet)}   # "a" is 0, and so is the blank
    loss = nn.CTCLoss()(log_probs, targets, input_lengths, target_lengths)

## Fix
    index = {letter: i for i, letter in enumerate(alphabet, start=1)}

Or give the blank a number that no label has: nn.CTCLoss(blank=len(alphabet)). Lengths that include
padding have the same effect: they must count only labels.

## See also
ND212 impossible-ctc-alignment; torch.nn.functional.ctc_loss ("targets cannot be blank")
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim

_OF_PADDING = 0.9
"""Share of the blanks behind each sample's last label: padding that the lengths count."""
_SEVERAL = 4


@rule(
    "ND138",
    "blank-label",
    "critical",
    "labels of a CTC loss that are its blank",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for _, call in calls_into_the_loss(evidence):
        found = call.notes.blanks
        if found is None or not found.blanks:
            continue
        labels, blanks, blank = found.labels, found.blanks, call.options.get("blank", 0)
        padding = found.behind >= _OF_PADDING * blanks
        made = evidence.inspection.labels_at if evidence.inspection is not None else None
        culprit = (
            at_call(call, evidence)
            if made is None or padding
            else Culprit(kind="data", location=made)
        )
        why = (
            "They come after the other labels of their samples: the lengths include padding."
            if padding
            else "A symbol has the number of the blank and cannot be distinguished from it."
        )
        yield learning_claim(
            rule,
            location_key(culprit.location) or ("labels", "blank"),
            title=f"{blanks} of {labels} labels are {blank}, the blank of the CTC loss",
            explanation=why,
            culprit=culprit,
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.5 if blanks >= _SEVERAL else 0.0),
            notes=[
                ("blank", str(blank)),
                ("labels", str(labels)),
                ("compared at", call.site.place if call.site is not None else None),
            ],
            fix="count only labels in target_lengths"
            if padding
            else "number the symbols from 1, or choose a blank that no symbol uses",
            standing=WIRED,
        )
        return
