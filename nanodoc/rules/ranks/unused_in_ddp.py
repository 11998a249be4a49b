"""## What it checks
The error that DDP raises in the step after one in which some parameters got no gradient. The
finding names them.

## Why it matters
The message gives only indices, one step too late.

## Example
    RuntimeError: Expected to have finished reduction in the prior iteration before starting a new
    one.

## Fix
    DistributedDataParallel(model, find_unused_parameters=True)   # if they change from step to step

## See also
ND505 unused-parameter
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count
from nanodoc.rules.crash.failure_claims import failure_claim

_UNREDUCED = re.compile(r"Expected to have finished reduction in the prior iteration")

_INDICES = re.compile(r"did not receive grad for rank \d+: (?P<indices>[\d ]+)")

_NAMES = re.compile(r"which did not receive grad for rank \d+: (?P<names>[A-Za-z_][\w., ]*)")


@rule(
    "ND803",
    "unused-in-ddp",
    "critical",
    "parameters without a gradient that DDP waits for",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not _UNREDUCED.search(failure.message):
        return
    names: tuple[str, ...] = ()
    listed, numbers = _NAMES.search(failure.message), _INDICES.search(failure.message)
    trainable = evidence.crash.trainable if evidence.crash is not None else ()
    if listed is not None:
        names = tuple(name.strip() for name in listed["names"].split(",") if name.strip())
    elif numbers is not None:
        names = tuple(
            trainable[i] for i in map(int, numbers["indices"].split()) if i < len(trainable)
        )
    what = (
        "Without a gradient in the previous step: "
        f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}. "
        if names
        else ""
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"{count(len(names), 'parameter')} took no part in the loss, and DDP waits for "
        f"{'it' if len(names) == 1 else 'them'}"
        if names
        else "parameters took no part in the loss, and DDP waits for them",
        explanation=f"{what}DistributedDataParallel reduces each gradient when it is ready; one "
        "that never comes leaves the step unfinished.",
        specificity=Specificity.SPECIAL,
        fixes=[
            Fix(
                title="remove unused layers from the model, or use their output in the loss",
                confidence="likely",
            ),
            Fix(
                title="if the unused ones change from step to step: "
                "DistributedDataParallel(model, find_unused_parameters=True)",
                confidence="likely",
            ),
        ],
        extra=[("without gradient", ", ".join(names))] if names else [],
    )
    culprit = replace(
        claim.finding.culprit, location=evidence.model_site or claim.finding.culprit.location
    )
    if names:
        culprit = replace(culprit, kind="parameter", parameter=names[0])
    yield replace(
        claim,
        finding=replace(
            claim.finding, culprit=culprit, confidence=confidence(0.7, 0.5 if names else 0.0)
        ),
    )
