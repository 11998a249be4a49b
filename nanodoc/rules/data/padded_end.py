"""## What it checks
Sequences that end with padding of different lengths, and a recurrent layer that reads them
completely: the gradient of the predictions with respect to the layer's output is zero except at the
last position, after the padding. Packed sequences end with their tokens. If the loss still comes
down, the finding is an info: the layer has learned to carry its state over the padding.

## Why it matters
The information from the tokens has to survive all the padding, and most of it gets lost.

## Example
    output, _ = self.lstm(self.embedding(ids))
    return self.head(output[:, -1])

## Fix
    return self.head(output[torch.arange(len(ids)), lengths - 1])

## See also
ND110 padding-dominated; torch.nn.utils.rnn.pack_padded_sequence
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import RECURRENT

_SURE = 4  # sequences


@rule(
    "ND130",
    "padded-end",
    "warning",
    "a recurrent layer that is read after the padding",
    needs=("inspection",),
    thresholds={
        "learnt": Threshold(0.9, "times the first loss: below it, the model copes with the padding")
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    padding = evidence.inspection.padding if evidence.inspection is not None else None
    if calls is None or padding is None or not padding.read_at_end or not evidence.losses:
        return
    call = _reading(calls)
    if call is None:
        return
    start, late = evidence.losses[0], late_loss(evidence.losses)
    learnt = late < check.limit(evidence, "learnt") * start
    rows = padding.read_at_end
    yield learning_claim(
        rule,
        location_key(call.site) or ("padding", "end"),
        severity="info" if learnt else rule.severity,
        title=f"the prediction is read after {padding.behind} padding tokens",
        explanation=f"The last position of {rows} of {rows} examined sequences is padding "
        f"({padding.value}), with a median of {padding.behind} in a row, and their "
        "predictions use only the recurrent layer's output there.",
        culprit=at_call(call, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 0.3 if rows >= _SURE else 0.0),
        notes=[
            ("padding", f"{100 * padding.share:.0f}% of the ids"),
            ("loss at the start", f"{start:.3g}"),
            ("loss of the last quarter", f"{late:.3g}"),
        ],
        fix="read each sequence at its own last token, or pack the sequences",
        standing=WIRED,
    )


def _reading(calls: StepCalls) -> CallFacts | None:
    """The call that takes the last position out of a recurrent layer's output, else the layer's
    own."""
    layers = [call for call in calls.calls if call.name in RECURRENT]
    if not layers:
        return None
    layer = layers[-1]
    taken = (
        call
        for call in calls.calls[layer.index :]
        if call.name in ("getitem", "select") and call.arguments[0].made_by == layer.index
    )
    return next((call for call in taken if call.requires_grad), layer)
