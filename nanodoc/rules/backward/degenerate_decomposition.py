"""## What it checks
A decomposition or solve that gives a non-finite gradient (or result) for finite input, or that
torch refuses.

## Why it matters
The gradients of svd and eigh divide by differences of singular values or eigenvalues, which are 0
for equal ones (an identity covariance, a symmetric input at initialisation).

## Example
    values, vectors = torch.linalg.eigh(torch.eye(3))

## Fix
Add distinct jitter to the diagonal, or use a loss that needs only the values.

## See also
ND301 infinite-gradient
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import ReplaceArgument
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.backward.inputs import input_evidence, is_decomposition
from nanodoc.rules.base import birth_claim
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.rewrite import guard


@rule(
    "ND304",
    "degenerate-decomposition",
    "critical",
    "svd, eigh, qr, inverse or cholesky of a degenerate matrix",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        if not is_decomposition(birth):
            continue
        site = birth.site
        yield birth_claim(
            rule,
            evidence,
            birth,
            title=f"{site.short} of a degenerate matrix "
            + ("has no finite gradient" if birth.phase == "backward" else "has no finite result"),
            explanation="The gradient divides by differences of eigenvalues or singular values "
            "(or by the values themselves); equal, zero or nearly equal ones make it infinite."
            if birth.phase == "backward"
            else f"{site.short} gives {birth.kind} for finite input: the matrix is singular or "
            "nearly so.",
            exact=0.8,
            specificity=Specificity.SPECIAL,
            extra=input_evidence(site),
            fixes=_jitter(site),
        )
    failure = evidence.failure
    if failure is not None and failure.type in ("LinAlgError", "_LinAlgError"):
        yield failure_claim(
            rule,
            evidence,
            title=f"the decomposition failed: {failure.message.splitlines()[0][:120]}",
            explanation=f"torch.linalg refused the matrix: {failure.message.splitlines()[0]}",
            fixes=_jitter_at_failure(failure),
            specificity=Specificity.SPECIAL,
        )


def _jitter_at_failure(failure: Failure) -> list[Fix]:
    name, where = failure.torch_function, failure.frames[-1] if failure.frames else None
    remedy = (
        ReplaceArgument(
            location=where,
            op=name,
            template="{x} + 1e-4 * torch.eye({x}.shape[-1])",
        )
        if name and where
        else None
    )
    return [
        Fix(
            title="add a small multiple of the identity (1e-4) to the matrix",
            confidence="maybe",
            remedy=remedy,
        )
    ]


def _jitter(site: OpFacts) -> list[Fix]:
    """Eigenvalues and singular values must be distinct for a gradient; an inverse or a factor only
    needs them away from zero."""
    if any(name in site.short for name in ("eig", "svd")):
        title, templates = (
            "add small distinct numbers to the diagonal of the matrix",
            (
                "{x} + torch.diag(torch.linspace(1e-5, 1e-4, {x}.shape[-1]))",
                "{x} + torch.diag(torch.linspace(1e-3, 1e-2, {x}.shape[-1]))",
            ),
        )
    else:
        title, templates = (
            "add a small multiple of the identity to the matrix",
            ("{x} + 1e-6 * torch.eye({x}.shape[-1])", "{x} + 1e-4 * torch.eye({x}.shape[-1])"),
        )
    return [guard(title, site, template, confidence="maybe") for template in templates]
