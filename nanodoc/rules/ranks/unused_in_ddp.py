"""## What it checks
The error that DDP raises in the step after one in which some parameters got no gradient. The
finding names them, and the line that froze them if they were frozen after the model was wrapped.

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

_UNUSED = (
    "remove unused layers from the model, or use their output in the loss",
    "if the unused ones change from step to step: "
    "DistributedDataParallel(model, find_unused_parameters=True)",
)
_LATE = ("freeze them before the model is wrapped",)


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
    names = _names(evidence, failure.message)
    crash = evidence.crash
    frozen = dict(crash.frozen) if crash is not None else {}
    late = bool(names) and all(name in frozen for name in names)
    told = f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
    what = f"Without a gradient in the previous step: {told}. " if names else ""
    number = count(len(names), "parameter") if names else "parameters"
    one = len(names) == 1
    why = (
        f"{'was' if one else 'were'} frozen after the model was wrapped"
        if late
        else "took no part in the loss"
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"{number} {why}, and DDP waits for {'it' if one else 'them'}",
        explanation=f"{what}DistributedDataParallel reduces each gradient when it is ready; one "
        "that never comes leaves the step unfinished.",
        specificity=Specificity.SPECIAL,
        fixes=[Fix(title=title, confidence="likely") for title in (_LATE if late else _UNUSED)],
        extra=[("without gradient", ", ".join(names))] if names else [],
    )
    site = frozen.get(names[0]) if late else None
    culprit = replace(
        claim.finding.culprit,
        location=site or evidence.model_site or claim.finding.culprit.location,
    )
    if names:
        culprit = replace(culprit, kind="parameter", parameter=names[0])
    yield replace(
        claim,
        finding=replace(
            claim.finding, culprit=culprit, confidence=confidence(0.7, 0.5 if names else 0.0)
        ),
    )


def _names(evidence: Evidence, message: str) -> tuple[str, ...]:
    """Of the parameters that the message speaks of."""
    listed, numbers = _NAMES.search(message), _INDICES.search(message)
    if listed is not None:
        return tuple(name.strip() for name in listed["names"].split(",") if name.strip())
    reduced = evidence.crash.reduced if evidence.crash is not None else ()
    found = map(int, numbers["indices"].split()) if numbers is not None else ()
    return tuple(reduced[i] for i in found if i < len(reduced))
