"""ND107–ND110, ND112, ND114: batches that compute and teach little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from nanodoc.diagnosis.claim import Claim, Specificity, Stage
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import BatchLeaf
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import Told, location_key
from nanodoc.vocabulary.calls import READERS, RECURRENT, SUPERVISED


def batch_claim(
    rule: Rule,
    evidence: Evidence,
    leaf: str | None,
    *,
    weight: float,
    fix: str,
    notes: Iterable[tuple[str, object]] = (),
    specificity: Specificity = Specificity.FAMILY,
    root: str = "",
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on a part of the batch, with one fix; notes without a value are left
    out."""
    return Claim(
        root=("data", root or rule.name, leaf),
        specificity=specificity,
        stage=Stage.DATA,
        finding=rule.finding(
            confidence=weight,
            **told,
            culprit=Culprit(kind="data", batch_path=leaf, location=evidence.data_site),
            phase="data",
            step=0,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def item_claim(
    rule: Rule,
    evidence: Evidence,
    index: int,
    part: str,
    line: SourceSpan | None,
    *,
    weight: float,
    fix: str,
    notes: Iterable[tuple[str, object]],
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on a `part` of sample `index` of the data set, as draws of it have shown;
    `line` is the one that makes it so, where it was seen."""
    return Claim(
        root=location_key(line) or ("data", rule.name, part),
        specificity=Specificity.EXACT,
        stage=Stage.DATA,
        finding=rule.finding(
            confidence=weight,
            **told,
            culprit=Culprit(
                kind="data",
                batch_path=part or None,
                dataset_indices=(index,),
                location=line or evidence.data_site,
            ),
            phase="data",
            step=0,
            evidence=tuple(notes),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def consumers(calls: StepCalls, leaf: str) -> list[CallFacts]:
    """The layers that take this part of the batch as it is."""
    found = []
    for call in calls.calls:
        if call.arguments and call.name in (*READERS, *RECURRENT):
            made = calls.origin(call.arguments[0])
            if isinstance(made, ArgumentFacts) and made.leaf == leaf:
                found.append(call)
    return found


def id_fields(calls: StepCalls, leaves: tuple[BatchLeaf, ...]) -> list[BatchLeaf]:
    """Parts of the batch that are looked up in an embedding."""
    looked_up = set()
    for call in calls.calls:
        if call.name == "embedding" and call.arguments:
            made = calls.origin(call.arguments[0])
            if isinstance(made, ArgumentFacts):
                looked_up.add(made.leaf)
    return [leaf for leaf in leaves if leaf.path in looked_up]


def is_used(calls: StepCalls, leaf: str) -> bool:
    return any(argument.leaf == leaf for call in calls.calls for argument in call.arguments)


def compares_with(evidence: Evidence, shape: tuple[int, ...]) -> bool:
    """The loss compares with something of a sample's `shape`, as far as the calls of a step
    tell."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    if calls is None:
        return True
    reaching = calls.reaching_the_loss()
    losses = [call for call in calls.calls if call.index in reaching]
    # an overlap (Dice) is a product
    by_overlap = not any(call.name in SUPERVISED for call in losses)
    compares = (*SUPERVISED, "sub", *(("mul",) if by_overlap else ()))
    size = tuple(number for number in shape if number > 1)
    return any(
        tuple(number for number in side.shape[1:] if number > 1) == size
        for call in losses
        if call.name in compares and any(side.requires_grad for side in call.arguments[:2])
        for side in call.arguments[:2]
        if not side.requires_grad
    )
