"""## What it checks
Successive batches of a loader that are bitwise equal although each was created separately; and an
input that has the same value everywhere, in every batch.

## Why it matters
The model memorises one batch.

## Example
    batch = next(iter(loader))      # in every step

## Fix
    for batch in loader: ...

## Options
Data given as a list with a single batch, or one batch per pass, is taken as intended.

## See also
ND109 class-imbalance
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import BatchLeaf, DataFacts
from nanodoc.rules.data.batch_claims import batch_claim, consumers, id_fields, is_used
from nanodoc.rules.learning.claims import calls_of


@rule(
    "ND108",
    "constant-batch",
    "critical",
    "the same batch, or the same value, again and again",
    needs=("data",),
    preflight="batch",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    data, calls = evidence.data, calls_of(evidence)
    if data is None or data.batches < 3:
        return
    used = calls is None or any(is_used(calls, leaf.path) for leaf in data.leaves)
    if data.loader and data.per_pass != 1 and used and data.identical >= data.batches - 1:
        yield _same_batch(rule, evidence, data)
        return
    inputs = [
        (leaf, taken)
        for leaf in data.leaves
        if calls is not None and (taken := consumers(calls, leaf.path))
    ]
    if (
        calls is None
        or id_fields(calls, data.leaves)
        or not all(leaf.floating and leaf.same_samples for leaf, _ in inputs)
    ):
        return  # a grid or a condition that all samples share stands beside inputs that differ
    targets = _targets(calls)
    if any(
        leaf.floating
        and not leaf.same_samples
        and leaf.path not in targets
        and is_used(calls, leaf.path)
        for leaf in data.leaves
    ):
        return
    for leaf, taken in inputs[:1]:
        yield _same_samples(rule, evidence, data, leaf, taken[0])


def _same_batch(rule: Rule, evidence: Evidence, data: DataFacts) -> Claim:
    """Every batch equals the one before."""
    return batch_claim(
        rule,
        evidence,
        None,
        severity="critical",
        title=f"all of the last {data.batches} batches are the same",
        explanation="They were created separately and are bitwise equal: the loop draws the same "
        "batch again and again.",
        weight=confidence(0.8, 0.5 if data.batches > 5 else 0.2),
        notes=[("identical batches", data.batches)],
        fix="iterate over the loader; `next(iter(loader))` starts over each time, and a seed set "
        "in every step draws the same samples",
    )


def _same_samples(
    rule: Rule, evidence: Evidence, data: DataFacts, leaf: BatchLeaf, taker: CallFacts
) -> Claim:
    """Every sample of a part of the batch equals the others. `taker` is the layer that it goes
    into."""
    alike = f"{leaf.minimum:g} everywhere" if leaf.constant else "the same for every sample"
    return batch_claim(
        rule,
        evidence,
        leaf.path,
        severity="critical",
        title=f"{leaf.path} is {alike}, in every batch",
        explanation=f"{taker.module or 'The model'} gets {list(leaf.shape)} values, and over "
        f"{data.batches} batches no two samples differ: nothing distinguishes them.",
        weight=confidence(0.8, 0.5 if data.batches > 5 else 0.2, 0.3 if leaf.constant else 0.0),
        notes=[
            ("range", f"{leaf.minimum:.4g} … {leaf.maximum:.4g}"),
            ("batches", data.batches),
        ],
        fix="check how the samples are stored: one tensor that is written to in place and stored "
        "repeatedly is still one tensor (clone it)",
    )


def _targets(calls: StepCalls) -> set[str | None]:
    """Parts of the batch that losses compare with."""
    found = set()
    for call in calls.calls:
        if (
            call.name.endswith(("_loss", "cross_entropy", "kl_div", "with_logits"))
            or call.name == "sub"
        ):
            for argument in call.arguments:
                made = calls.origin(argument, elementwise=True)
                if isinstance(made, ArgumentFacts):
                    found.add(made.leaf)
    return found
