"""## What it checks
When a step fails, the bad values are traced back to their origin. If they were already NaN or inf
in the batch, the report gives the path in the batch, the samples and, if the loader's sampler
provides them, their indices in the data set.

## Why it matters
One bad record in a million poisons every weight in a single step, although nothing in the model is
wrong.

## Example
    batch = {"image": ..., "age": tensor([31., nan, 54.])}

## Fix
Drop or repair the samples in the data set. Masking after the loss does not help: the gradient of a
masked NaN is 0 · NaN = NaN (see ND302).

## See also
ND302 masked-branch-gradient
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import WithoutSamples
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import RECEIVED, LeafRoot, TensorFacts
from nanodoc.rules.base import count, effects, link, replay_row


@rule(
    "ND101",
    "non-finite-input",
    "critical",
    "NaN or inf in a batch",
    preflight="batch",
    trials=(
        "values",
        "samples",
    ),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for leaf in evidence.leaves:
        if leaf.kind not in ("batch", "unknown"):
            continue
        facts = leaf.facts
        what = _what(facts)
        name = leaf.name if leaf.kind == "batch" else _outside(leaf)
        yield Claim(
            root=("leaf", leaf.name),
            specificity=Specificity.SPECIAL,
            position=leaf.consumer.index if leaf.consumer else 0,
            finding=rule.finding(
                confidence=confidence(
                    0.5 if evidence.reproduced == "bitwise" else 0.2,
                    0.8 if facts.nonfinite else 0.0,
                    0.5 if leaf.samples else 0.0,
                ),
                title=f"{name} holds {what or 'non-finite values'}",
                explanation=f"{name} ({facts.dtype}, shape {list(facts.shape)}) contains {what} "
                f"among {facts.numel} elements, and they reach the "
                f"loss.{_who(leaf)}{_made(leaf)}",
                culprit=_data_culprit(leaf),
                phase="data" if leaf.kind == "batch" else "forward",
                step=evidence.trip.step if evidence.trip else evidence.failure_step,
                evidence=(
                    ("NaN", facts.nan),
                    ("inf", facts.inf),
                    ("elements", facts.numel),
                    ("finite minimum", facts.minimum),
                    ("finite maximum", facts.maximum),
                    *_reader(leaf),
                ),
                chain=tuple(link(op) for op in leaf.chain),
                effects=effects(evidence),
                experiments=replay_row(evidence),
                fixes=()
                if leaf.kind != "batch"
                else (
                    Fix(
                        title="drop or repair these samples in the data set, before they are "
                        "batched",
                        confidence="likely",
                        remedy=WithoutSamples(),
                    ),
                ),
            ),
        )


def _outside(leaf: LeafRoot) -> str:
    """A tensor that is no batch's, by the name that the step reads it by where that is known."""
    if leaf.kind == RECEIVED:
        return "a tensor that another rank sent"
    return f"`{leaf.making.name}`" if leaf.making else "a tensor made outside the step"


def _what(facts: TensorFacts) -> str:
    """ "2 NaN and 1 inf"."""
    return " and ".join(
        part
        for part in (
            count(facts.nan, "NaN") if facts.nan else "",
            f"{facts.inf} inf" if facts.inf else "",
        )
        if part
    )


def _reader(leaf: LeafRoot) -> tuple[tuple[str, str], ...]:
    """The line that read the values first, where another one made them."""
    read = leaf.consumer.site if leaf.consumer is not None else None
    if leaf.making is None or read is None:
        return ()
    return (("first read at", f"{read.place}: {read.code}"),)


def _who(leaf: LeafRoot) -> str:
    """The sentence about the samples that hold the values, or nothing where they are unknown."""
    if not leaf.samples:
        return ""
    several = len(leaf.samples) > 1
    shown = ", ".join(map(str, leaf.samples[:8])) + (", …" if len(leaf.samples) > 8 else "")
    who = f" Sample{'s' if several else ''} {shown} of the batch"
    if leaf.dataset_indices:
        who += (
            f" (data set ind{'ices' if len(leaf.dataset_indices) > 1 else 'ex'} "
            f"{', '.join(map(str, leaf.dataset_indices[:8]))})"
        )
    return f"{who} {'hold' if several else 'holds'} them."


def _made(leaf: LeafRoot) -> str:
    """The sentence about the line that made the values."""
    making = leaf.making
    if making is None:
        return ""
    line = making.line.place
    if leaf.kind != "batch":
        return f" They have been there since {line}."
    if making.stage == "sample":
        return (
            f" They appear each time the sample is drawn: after {line}, {making.name} holds them."
        )
    return f" They have been in the data since {line}, after which {making.name} holds them."


def _data_culprit(leaf: LeafRoot) -> Culprit:
    consumer, making = leaf.consumer, leaf.making
    read = consumer.site if consumer else None
    return Culprit(
        kind="data",
        op=consumer.op if consumer else None,
        module=consumer.module if consumer else None,
        module_type=consumer.module_type if consumer else None,
        batch_path=leaf.name if leaf.kind == "batch" else None,
        samples=leaf.samples,
        dataset_indices=leaf.dataset_indices,
        location=making.line if making is not None else read,
    )
