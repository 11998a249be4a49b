"""## What it checks
Token ids whose rows end (or begin) in runs of one token. Critical: that token makes up more than
half of the targets that the loss counts. Warning: it makes up more than half of the ids and nothing
masks it; or the loss ignores no labels and at least a tenth of them are at positions that a mask in
the batch marks as padding.

## Why it matters
The loss falls because padding is easy to predict.

## Example
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())     # pads included

## Fix
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=pad)

## See also
ND105 all-targets-ignored, ND114 all-ones-mask
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import BatchLeaf, DataFacts, PaddedLabels
from nanodoc.rules.data.batch_claims import batch_claim, id_fields
from nanodoc.rules.learning.claims import calls_of
from nanodoc.vocabulary.calls import COMPARISONS, REDUCTIONS

_MASKS = (*COMPARISONS, "bool", "pack_padded_sequence", "masked_fill", "masked_select")
_PADDED = 0.1  # of the targets


@rule(
    "ND110",
    "padding-dominated",
    "warning",
    "most inputs or targets are padding",
    needs=(
        "inspection",
        "data",
    ),
    thresholds={
        "share": Threshold(0.5, "share of one token (SageMaker Debugger, NLPSequenceRatio)")
    },
    preflight="batch",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    ids = id_fields(calls, data.leaves)
    loss, counted = next(
        (
            (call, call.notes.labels)
            for call in calls.calls
            if call.notes.labels is not None and call.notes.labels.counts is not None
        ),
        (None, None),
    )
    labels = _labels(calls, loss, data.leaves) if loss is not None else None
    if loss is not None and labels is not None and counted is not None and counted.counts:
        share = counted.counts.top_count / max(counted.kept, 1)
        of_ids = any(leaf.top_value == labels.top_value for leaf in ids)
        if (
            of_ids
            and share > check.limit(evidence, "share")
            # models that shift by themselves ignore one label a row
            and counted.ignored <= labels.shape[0]
            and counted.counts.top == labels.top_value
            and labels.ragged
            and (counted.targets or 0) > labels.shape[0]
        ):
            yield _counted(rule, evidence, labels, share, loss, counted.ignored)
            return
    padded = _padded(data, loss, labels) if loss is not None and labels is not None else None
    if padded is not None and labels is not None and loss is not None:
        yield _at_padding(rule, evidence, labels, padded, loss)
        return
    for leaf in ids:
        if (
            leaf.top_share <= check.limit(evidence, "share")
            or not leaf.ragged
            or _masked(calls, leaf, data.leaves)
            or (counted is not None and counted.ignored)
        ):
            continue
        yield batch_claim(
            rule,
            evidence,
            leaf.path,
            root="padding",
            title=f"{leaf.top_share:.0%} of {leaf.path} is the token {leaf.top_value:.0f}, and "
            "nothing masks it",
            explanation=f"Rows end in runs of {leaf.top_value:.0f} of different lengths, as "
            "padding does; the model treats them like any other token.",
            weight=confidence(0.5, 0.3 if leaf.top_share > 0.7 else 0.1),
            notes=[("share", round(leaf.top_share, 3)), ("token", leaf.top_value)],
            fix="mask the padding, pack the sequences, and batch sequences of similar length",
        )
        return


def _labels(calls: StepCalls, loss: CallFacts, leaves: tuple[BatchLeaf, ...]) -> BatchLeaf | None:
    """The part of the batch that the loss compares with."""
    made = calls.origin(loss.arguments[1]) if len(loss.arguments) > 1 else None
    path = made.leaf if isinstance(made, ArgumentFacts) else None
    return next((leaf for leaf in leaves if leaf.path == path), None)


def _counted(
    rule: Rule, evidence: Evidence, leaf: BatchLeaf, share: float, loss: CallFacts, ignored: int
) -> Claim:
    claim = batch_claim(
        rule,
        evidence,
        leaf.path,
        root="padding",
        severity="critical",
        specificity=Specificity.SPECIAL,
        title=f"{share:.0%} of the targets are padding, and the loss counts them",
        explanation=f"The token {leaf.top_value:.0f} fills the ends of the rows of {leaf.path} "
        f"and {share:.0%} of the targets of {loss.name}: the model is rewarded mostly for "
        "predicting padding.",
        weight=confidence(0.8, 0.4 if share > 0.7 else 0.1),
        notes=[
            ("share of the targets", round(share, 3)),
            ("token", leaf.top_value),
            ("ignored targets", ignored),
        ],
        fix=f"ignore_index={leaf.top_value:.0f}, or −100 in the targets where the input is padding",
    )
    culprit = Culprit(
        kind="data",
        op=loss.name,
        module=loss.module,
        module_type=loss.module_type,
        batch_path=leaf.path,
        location=(evidence.inspection.labels_at if evidence.inspection else None) or loss.site,
    )
    return replace(claim, finding=replace(claim.finding, culprit=culprit, phase="forward"))


def _padded(data: DataFacts, loss: CallFacts, labels: BatchLeaf) -> PaddedLabels | None:
    """The labels of positions of padding, where the loss counts every one of them."""
    counted = loss.notes.labels
    if counted is None or counted.ignored or loss.reduction not in REDUCTIONS:
        return None
    # a model that shifts its labels by itself leaves one a row out
    rows, all_of_them = labels.shape[0], math.prod(labels.shape)
    if (counted.targets or 0) < all_of_them - rows or loss.options.get("weights"):
        return None
    found = (p for p in data.padded if p.path == labels.path and p.share >= _PADDED)
    return next(found, None)


def _at_padding(
    rule: Rule, evidence: Evidence, labels: BatchLeaf, padded: PaddedLabels, loss: CallFacts
) -> Claim:
    claim = batch_claim(
        rule,
        evidence,
        labels.path,
        root="padding",
        specificity=Specificity.SPECIAL,
        title=f"{padded.share:.0%} of {labels.path} are padding with the label {padded.value}, and "
        "the loss counts them",
        explanation=f"Where {padded.mask} is 0, every label is {padded.value}, which {loss.name} "
        "treats as an ordinary class: it ignores nothing.",
        weight=confidence(0.7, min(padded.share, 0.5)),
        notes=[("share of the targets", round(padded.share, 3)), ("label", padded.value)],
        fix="fill the labels with −100 (the ignore_index) where the mask is 0",
    )
    made = evidence.inspection.labels_at if evidence.inspection is not None else None
    culprit = replace(claim.finding.culprit, op=loss.name, location=made or loss.site)
    return replace(claim, finding=replace(claim.finding, culprit=culprit))


def _masked(calls: StepCalls, ids: BatchLeaf, leaves: tuple[BatchLeaf, ...]) -> bool:
    """Something is made of the ids besides their embedding, or the batch brings a mask or lengths
    along."""
    for call in calls.calls:
        if call.name in _MASKS or (
            call.name == "embedding" and call.options.get("padding_idx") is not None
        ):
            return True
    return any(
        leaf is not ids
        and leaf.shape == ids.shape
        and not leaf.constant
        and leaf.minimum >= 0
        and leaf.maximum == 1
        for leaf in leaves
    )
