"""## What it checks
An optimizer that steps on gradients that still contain those of its previous step. nanodoc records
the calls of a train_step, their order and their tensors.

## Why it matters
backward() adds to .grad. Without zero_grad() each step applies the sum of all gradients since the
start: the loss falls at first, then oscillates and blows up.

## Example
    loss.backward()
    optimizer.step()          # and no zero_grad() anywhere

## Fix
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

## Options
Accumulating over micro-batches is fine as long as gradients are cleared after each optimizer step.

## See also
ND622 discarded-gradients, ND606 divergence
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.remedy import ClearGradients
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    CARRIED,
)
from nanodoc.rules.base import count
from nanodoc.rules.learning.loop_claims import loop_misuse, misuse_claim


@rule(
    "ND608",
    "accumulating-gradients",
    "critical",
    "gradients are never cleared between steps",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    misuse = loop_misuse(evidence, CARRIED)
    if misuse is None:
        return
    if evidence.ownership is not None and evidence.ownership.twice_held:
        return  # ND506: this optimizer was given another one's parameters
    norms = [norm for norm in evidence.grad_norms if norm - norm == 0]
    growth = (("gradient norm", f"{norms[0]:.3g} → {norms[-1]:.3g}"),) if len(norms) > 1 else ()
    shown = misuse.parameters
    whom = (
        (
            f"{count(len(shown), 'parameter')} ({', '.join(shown[:2])}"
            f"{', …' if len(shown) > 2 else ''})"
        )
        if shown
        else "the parameters"
    )
    yield misuse_claim(
        rule,
        evidence,
        misuse,
        # updates that blew up for this reason have this cause, whatever overflowed
        root=("optimizer", 0),
        title="gradients are never cleared: every step applies the sum of all earlier ones",
        explanation=f"When this optimizer stepped, the gradients of {whom} still held those of its "
        "previous step: backward() adds to .grad, and nothing "
        "cleared it in between.",
        fix="call optimizer.zero_grad() once per optimizer step, before backward()",
        remedy=ClearGradients(whole_run=True),
        notes=growth,
    )
