"""## What it checks
A softmax on the way to the loss over a dimension of size 1, made by a layer with a single output or
by keeping one of several scores (`topk(1)`). Attention over a single key is not reported.

## Why it matters
softmax of one number is 1. Attention weights are all equal, a classifier always answers 1, and the
layers before get a zero gradient.

## Example
    scores = self.score(h)                    # (batch, time, 1)
    weights = torch.softmax(scores, dim=-1)   # all ones

## Fix
    weights = torch.softmax(scores, dim=1)    # over time

## See also
ND612 double-softmax, ND501 cut-graph
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_into_the_loss
from nanodoc.vocabulary.calls import LINEAR_MAPS, SOFTMAXES


@rule(
    "ND620",
    "singleton-softmax",
    "critical",
    "softmax over a dimension of size 1 is constant",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in SOFTMAXES:
            continue
        shape, dim = call.arguments[0].shape, call.options.get("dim")
        if (
            not isinstance(dim, int)
            or not shape
            or not -len(shape) <= dim < len(shape)
            or not call.arguments[0].requires_grad
        ):
            continue
        if (
            (call.notes.largest_dimension or 1) > 1
            or shape[dim] != 1
            or math.prod(shape) == 1
            or not _made_by_a_layer(calls, call.arguments[0])
        ):
            continue
        others = [f"dim={i} ({size})" for i, size in enumerate(shape) if size > 1 and i > 0]
        fix = (
            f"normalise over the dimension whose entries compete: {', '.join(others)}"
            if others
            else "use sigmoid for a single output"
        )
        yield Claim(
            root=location_key(call.site) or ("softmax", call.index),
            specificity=Specificity.EXACT,
            stage=Stage.WIRING,
            finding=rule.finding(
                confidence=confidence(
                    0.8, 0.6 if evidence.always_zero else 0.1, 0.3 if call.site is not None else 0.0
                ),
                title=f"{call.name} over a dimension of size 1 is always "
                f"{1 if call.name == 'softmax' else 0}",
                explanation=f"Its input is {list(shape)} and dim={dim} has one element: whatever "
                "the layers before it compute, the result is the same, and they get no "
                "gradient.",
                culprit=at_call(call, evidence),
                phase="forward",
                step=0,
                evidence=(
                    ("input shape", str(list(shape))),
                    ("dim", dim),
                    *_zero_gradients(evidence),
                ),
                fixes=(Fix(title=fix, confidence="likely"),),
            ),
        )


def _made_by_a_layer(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """The dimension is a layer's one output, or the one that was kept of several. Attention over a
    single key is no mistake."""
    made = calls.origin(argument, elementwise=True)
    if isinstance(made, CallFacts) and made.name == "topk" and made.arguments:
        return _made_by_a_layer(calls, made.arguments[0])
    return (
        isinstance(made, CallFacts)
        and made.name in LINEAR_MAPS
        and any(given.made_by is None and given.requires_grad for given in made.arguments)
    )


def _zero_gradients(evidence: Evidence) -> Iterator[tuple[str, object]]:
    if evidence.always_zero:
        yield "gradient exactly zero in every step", ", ".join(evidence.always_zero[:4])
