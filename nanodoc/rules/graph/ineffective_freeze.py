"""## What it checks
`module.requires_grad = False`, which sets a plain attribute on the module; its parameters still
require gradient.

## Why it matters
The part that should be frozen is trained.

## Example
    model.backbone.requires_grad = False

## Fix
    model.backbone.requires_grad_(False)

## See also
ND508 unexpectedly-frozen
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence


@rule(
    "ND517",
    "ineffective-freeze",
    "warning",
    "requires_grad set on a module freezes nothing",
    needs=("ownership",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    frozen = evidence.ownership.frozen if evidence.ownership is not None else None
    for path, kind, line in frozen.ineffective if frozen is not None else ():
        yield Claim(
            root=("owner", "ineffective", path),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            finding=rule.finding(
                confidence=confidence(0.8, 0.4 if line else 0.0),
                title=f"requires_grad = False on a module freezes nothing: {path or kind}",
                explanation=f"{kind} has no such setting: the assignment creates a plain "
                "attribute, and its parameters are still trained.",
                culprit=Culprit(kind="module", module=path, module_type=kind, location=line),
                phase="setup",
                step=None,
                fixes=(
                    Fix(
                        title="call requires_grad_(False), which applies to all its parameters",
                        confidence="machine",
                    ),
                ),
            ),
        )
