"""## What it checks
An attention mask in the last step that lets each position see every later one, but neither itself
nor an earlier one. Also padded sequences whose predictions depend on the padding, but on no tokens
except the first, the last and the predicted position itself. And a mask of zeros and ones by which
the positions of a tensor are multiplied: over the last batches, all that it keeps is one and the
same vector, and what it hides differs.

## Why it matters
It is a causal mask upside down: True means "may be seen" for scaled_dot_product_attention and
"hidden" for MultiheadAttention, and a tril instead of a triu has the same effect. The last position
sees nothing at all, and the model learns to predict from later tokens.

## Example
    mask = torch.full((n, n), float("-inf")).tril()
    self.encoder(x, mask=mask)

## Fix
    mask = torch.full((n, n), float("-inf")).triu(1)

## See also
ND205 fully-masked-softmax, ND114 all-ones-mask
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, is_attention
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import PaddingFacts
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_into_the_loss,
    learning_claim,
)


@rule(
    "ND116",
    "inverted-mask",
    "critical",
    "an inverted mask: visible positions are hidden, and hidden ones are visible",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    rows = list(_of_rows(rule, evidence))
    yield from rows
    padding = evidence.inspection.padding if evidence.inspection is not None else None
    if rows or (padding is not None and padding.ignores_tokens == padding.rows):
        calls = [call for _, call in calls_into_the_loss(evidence) if is_attention(call)]
        if calls and not rows and padding is not None:
            yield _of_padding(rule, evidence, padding, calls[0])
        return
    found = [
        (call, call.notes.mask)
        for _, call in calls_into_the_loss(evidence)
        if call.notes.mask is not None
    ]
    if not found:
        return
    call, mask = found[0]
    several = len(found) > 1
    culprit = at_call(call, evidence)
    made = evidence.inspection.causal_mask_at if evidence.inspection is not None else None
    itself = "only itself" if mask.sees_itself else "none, not even itself"
    yield learning_claim(
        rule,
        location_key(made or call.site) or ("mask", call.index),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title="the attention mask is inverted: each position sees only those after it",
        explanation=f"Of the {mask.positions} positions, the first sees all others, and the last "
        f"sees {itself}. A causal mask hides the later positions.",
        culprit=replace(culprit, location=made) if made is not None else culprit,
        step=evidence.inspection.step if evidence.inspection is not None else None,
        weight=confidence(0.9, 0.3 if several else 0.0),
        notes=[("attention calls with it", len(found)), ("positions", mask.positions)],
        fix="hide the later positions: torch.full((n, n), float('-inf')).triu(1), or "
        "is_causal=True; a boolean mask means the opposite in scaled_dot_product_attention "
        "and in MultiheadAttention",
    )


def _of_rows(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """A factor that keeps what is the same everywhere."""
    for _, call in calls_into_the_loss(evidence):
        seen = call.notes.product.admitted
        if seen is None:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("mask", call.index),
            standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
            title="the mask is inverted: it keeps only positions that all hold the same"
            + (", zeros" if seen.zeros else ""),
            explanation=f"In the last batches it lets through {seen.kept} positions, which are one "
            f"and the same vector, as padding is. It hides {seen.hidden} positions, which differ.",
            culprit=at_call(call, evidence),
            step=evidence.inspection.step if evidence.inspection is not None else None,
            # a few positions may hold the same by chance
            weight=confidence(0.7, 1 - 4 / min(seen.kept, seen.hidden)),
            notes=[("positions kept", seen.kept), ("positions hidden", seen.hidden)],
            fix="let the mask keep the positions that hold something, as ids != padding",
        )
        return


def _of_padding(
    rule: Rule, evidence: Evidence, padding: PaddingFacts, attention: CallFacts
) -> Claim:
    inspection = evidence.inspection
    culprit = at_call(attention, evidence)
    if inspection is not None and inspection.mask_at is not None:
        culprit = Culprit(kind="data", location=inspection.mask_at)
    read = padding.reads_padding > 0
    return learning_claim(
        rule,
        location_key(culprit.location) or ("mask", "padding"),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
        title="the padding mask is inverted: "
        + (
            "the padding is visible, and the tokens are not" if read else "no token sees the others"
        ),
        explanation=f"In all of {padding.rows} sequences that end in padding (id {padding.value}) "
        f"the prediction depends on {'the padding, but on ' if read else ''}no tokens except "
        "the first, the last and its own.",
        culprit=culprit,
        step=inspection.step if inspection is not None else None,
        weight=confidence(0.9, 0.3 if padding.rows > 1 else 0.0),
        notes=[("padding id", padding.value), ("share of padding", round(padding.share, 3))],
        fix="mask = ids != padding where True means visible (Hugging Face's attention_mask); "
        "key_padding_mask of torch's layers means the opposite",
    )
