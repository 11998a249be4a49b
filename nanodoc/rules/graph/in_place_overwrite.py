"""## What it checks
"One of the variables needed for gradient computation has been modified by an inplace operation."
The step is re-run and every saved tensor's version is checked as autograd does. The finding names
the op that saved it and the op that overwrote it, or the optimizer.step() that came between a
forward pass and its backward.

## Why it matters
The error is raised in backward, far from either line, and its hint (anomaly detection) names the op
that saved the tensor, not the one that overwrote it.

## Example
    norm = x.pow(2).sum(1, keepdim=True).sqrt()      # pow saves x
    x /= norm                                        # and this overwrites it

## Fix
    x = x / norm

## See also
ND503 backward-twice, ND511 in-place-on-leaf
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import OverwriteFacts
from nanodoc.facts.ops import OpFacts
from nanodoc.rules.base import Account
from nanodoc.rules.graph.failure_claims import (
    both_ends,
    family_of,
    innermost,
    one_end,
    out_of_place,
)


@rule(
    "ND504",
    "in-place-overwrite",
    "critical",
    "a tensor that backward needs was overwritten",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    family = family_of(evidence)
    if family == "view-write":
        yield _view_write(rule, evidence)
        return
    if family != "overwritten" or (
        evidence.graph is not None and evidence.graph.overwrite is None and evidence.graph.carried
    ):
        return
    found = evidence.graph.overwrite if evidence.graph is not None else None
    if found is None or found.overwritten_by is None:
        yield one_end(
            rule,
            evidence,
            title="a tensor that backward needs was overwritten in place",
            explanation="The write did not show when the step was re-run; torch's message names "
            "the tensor.",
            sure=0.1,
        )
        return
    writer, saved = found.overwritten_by, found.saved_by
    account = (
        _by_optimizer(found)
        if found.optimizer_call is not None
        else _by_op(evidence, found, writer)
    )
    yield both_ends(
        rule,
        evidence,
        found.optimizer_call or writer.location,
        title=account.title,
        explanation=account.explanation,
        op=writer,
        other=("saved at", saved.location if saved else None),
        fixes=account.fixes,
        sure=0.8,
    )


def _by_optimizer(found: OverwriteFacts) -> Account:
    """A parameter that optimizer.step() overwrote."""
    return Account(
        title="the optimizer stepped before the backward() of a forward pass that came before it",
        explanation=f"{_saver(found)} saved "
        f"{found.leaf.removeprefix('param:') if found.leaf else 'a parameter'} "
        f"{list(found.shape)} for its derivative, and this step() overwrote it before the "
        "derivative was computed.",
        fixes=(
            Fix(
                title="call every backward() first, or run the forward pass again after step()",
                confidence="likely",
            ),
        ),
    )


def _by_op(evidence: Evidence, found: OverwriteFacts, writer: OpFacts) -> Account:
    """A tensor that an in-place op of the step overwrote."""
    verified = evidence.graph is not None and any(
        kind == "out-of-place" for _, kind in evidence.graph.verified
    )
    return Account(
        title=f"{writer.short}_ overwrites a tensor that backward needs",
        explanation=f"{_saver(found)} saved this tensor {list(found.shape)} for its derivative; "
        f"the in-place {writer.short}_ then changed it.",
        fixes=(
            Fix(
                title="write the result to a new tensor",
                patch=out_of_place(writer.location),
                verified=verified or None,
                confidence="machine" if verified else "likely",
            ),
        ),
    )


def _saver(found: OverwriteFacts) -> str:
    return found.saved_by.short if found.saved_by is not None else "an op"


def _view_write(rule: Rule, evidence: Evidence) -> Claim:
    where = innermost(evidence)
    return both_ends(
        rule,
        evidence,
        where,
        title="an in-place write to a view that autograd cannot follow",
        explanation="Views returned together by one call (unbind, split, chunk, iteration over a "
        "tensor), or made under no_grad, can't be written to in place if gradients are "
        "needed.",
        fixes=(
            Fix(
                title="write the result to a new tensor",
                patch=out_of_place(where),
                confidence="likely",
            ),
        ),
    )
