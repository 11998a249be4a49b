"""ND102, ND103: indices and labels beyond what they index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.crash import CrashFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count, effects
from nanodoc.rules.crash.failures import failure_claim


def _index_out_of_range(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = next((one for one in evidence.ranges if not one.label), None)
    if found is not None:
        whose = f"{found.module} has" if found.module else "there are"
        what = "rows" if found.function.startswith("embedding") else "entries along that dimension"
        yield _claim(
            rule,
            evidence,
            found,
            title=f"index {found.value} at {list(found.position)}, but {whose} {found.size} {what} "
            f"(0…{found.size - 1})",
            explanation=f"{count(found.count, 'index') if found.count == 1 else f'{found.count} indices'} "
            f"of {list(found.shape)} {'is' if found.count == 1 else 'are'} out of range, from "
            f"{found.minimum} to {found.maximum}. On a GPU the same shows as a device-side "
            "assert, often somewhere else.",
            fix=_index_fix(found),
        )


def _index_fix(found: RangeFacts) -> str:
    if found.consecutive and found.minimum >= 0:
        return (
            f"these are positions: cut the sequences to {found.size}, or make room for "
            f"{found.maximum + 1} of them"
        )
    if found.function.startswith("embedding") and found.minimum >= 0:
        return (
            f"num_embeddings of at least {found.maximum + 1}; after tokens were added to a "
            "tokenizer: model.resize_token_embeddings(len(tokenizer))"
        )
    if found.minimum == found.maximum != found.size:
        return (
            f"where {found.value} stands for none, look up something else there and leave it out "
            "afterwards (a mask)"
        )
    negative = found.minimum < 0 and found.function != "getitem"
    return "look at how the indices are made" + (
        "; negative ones are no places counted from the end here" if negative else ""
    )


def _label_out_of_range(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = next((one for one in evidence.ranges if one.label), None)
    if found is not None:
        one_based = found.minimum == found.maximum == found.size and found.least >= 1
        yield _claim(
            rule,
            evidence,
            found,
            title=f"label {found.value} at {list(found.position)}, but the model has {found.size} "
            f"classes (0…{found.size - 1})",
            explanation=f"{count(found.count, 'label')} of {list(found.shape)} "
            f"{'is' if found.count == 1 else 'are'} out of range, from {found.minimum} to "
            f"{found.maximum}."
            + (" Labels that are counted from 1 end one too high." if one_based else ""),
            fix="labels counted from 0 (y - 1)"
            if one_based
            else "ignore_index for labels that stand for none"
            if found.maximum < 0
            else f"an output of at least {found.maximum + 1} classes, or other labels for these "
            "samples",
        )


def _claim(
    rule: Rule, evidence: Evidence, found: RangeFacts, *, title: str, explanation: str, fix: str
) -> Claim:
    where = (
        found.called_from or found.location or (evidence.criterion_site if found.label else None)
    )
    notes = (
        ("value", found.value),
        ("position", str(list(found.position))),
        ("out of range", f"{found.count} of {_size(found.shape)}"),
    )
    samples, known = _samples(evidence.crash or CrashFacts(), found)
    culprit = Culprit(
        kind="data",
        op=found.function,
        module=found.module,
        module_type=found.module_type,
        samples=samples,
        dataset_indices=known,
        location=where,
    )
    if evidence.failure is not None:
        claim = failure_claim(
            rule,
            evidence,
            title=title,
            explanation=explanation,
            fixes=[Fix(title=fix, confidence="likely")],
            specificity=Specificity.EXACT,
            extra=notes,
        )
        finding = replace(
            claim.finding,
            culprit=culprit,
            confidence=confidence(0.9, 0.6),
            effects=effects(evidence),
            phase="forward",
            evidence=(*notes, *claim.finding.evidence[len(notes) :]),
        )
        return replace(claim, finding=finding)
    return Claim(
        root=("failure",),
        specificity=Specificity.EXACT,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.9, 0.4),
            title=title,
            explanation=explanation,
            culprit=culprit,
            phase="forward",
            step=0,
            evidence=notes,
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def _samples(crash: CrashFacts, found: RangeFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(samples of the batch, their places in the data set) as far as they are known. Labels of
    sequences are often flattened before the loss."""
    rows, size = found.rows, crash.batch_size or 0
    target = crash.call.given[1] if crash.call is not None and len(crash.call.given) > 1 else None
    straight = target is not None and (target.leaf or "").startswith("batch")
    samples = found.samples
    if (
        found.label
        and straight
        and len(found.shape) == 1
        and size
        and rows > size
        and rows % size == 0
    ):
        samples = tuple(dict.fromkeys(i // (rows // size) for i in samples))
    elif rows != size:  # positions, edges, items of bags: no rows of the batch
        return (), crash.indices if len(crash.indices) == 1 else ()
    return samples, tuple(crash.indices[i] for i in samples) if len(crash.indices) == size else ()


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


RULES = (
    Rule(
        code="ND102",
        name="index-out-of-range",
        severity="critical",
        summary="an id beyond the rows of its embedding, an index beyond its dimension",
        check=_index_out_of_range,
        doc="""\
## What it checks
The indices given to embedding, embedding_bag, one_hot, gather and index_select, before the lookup: on the first step while it runs, and on
the step that raised. Reported with the value, its position, its samples, and the table's size.

## Why it matters
On the CPU it is an IndexError without a value. On a GPU it is a device-side assert, or CUBLAS_STATUS_ALLOC_FAILED, at a later line, and the
process cannot go on.

## Example
    tokenizer.add_special_tokens({"additional_special_tokens": ["<e1>"]})
    model(tokenizer("<e1> …"))          # id 30522 of 30522 rows

## Fix
    model.resize_token_embeddings(len(tokenizer))

## Options
`--no-preflight` leaves out the check of the first step.

## See also
ND103 label-out-of-range
""",
    ),
    Rule(
        code="ND103",
        name="label-out-of-range",
        severity="critical",
        summary="a class label beyond the model's classes",
        check=_label_out_of_range,
        doc="""\
## What it checks
The integer targets of cross_entropy and nll_loss against the number of classes, before the call; `ignore_index` counts as no label.

## Why it matters
On the CPU the message names one value and no position; on a GPU the process is lost to a device-side assert.

## Example
    labels = torch.tensor([1, 2, 3])     # counted from 1
    loss = F.cross_entropy(logits, labels)   # logits of 3 classes

## Fix
    loss = F.cross_entropy(logits, labels - 1)

## Options
`--no-preflight` leaves out the check of the first step.

## See also
ND102 index-out-of-range, ND105 all-targets-ignored
""",
    ),
)
