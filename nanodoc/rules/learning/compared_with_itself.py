"""## What it checks
A loss that is the same number in every step, with gradients that are not zero: the last step
subtracts two equal tensors, one with gradients and one without, that were computed with the same
parameters.

## Why it matters
The reference changes with the model. The loss says nothing about progress, and the reference, such
as DPO's reference model, does not hold the model back.

## Example
    reference = model                       # the model itself, not a copy
    with torch.no_grad():
        reference_logps = logps(reference, ids)

## Fix
    reference = copy.deepcopy(model).requires_grad_(False)

## See also
ND621 zero-loss; Rafailov et al. 2023, Direct Preference Optimization, equation 7
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import SHORTEST, WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import LAYERS

_THE_SAME = 1e-5  # of the loss: the rounding of float32
_NOTHING = 1e-3  # a smaller loss may be the rounding of zero, as an advantage's mean is
_LONG = 30  # steps: the longer a loss stays, the surer


@rule(
    "ND639",
    "compared-with-itself",
    "critical",
    "a loss that compares the model with itself",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, losses = calls_of(evidence), evidence.losses
    if calls is None or len(losses) < SHORTEST or not _is_constant(losses):
        return
    if not evidence.grad_norms or not any(evidence.grad_norms):
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index not in reaching or not call.notes.same:
            continue
        learns, fixed = sorted(call.arguments[:2], key=lambda side: not side.requires_grad)
        both = _parameters(calls.behind(learns)[1]) & _parameters(calls.behind(fixed)[1])
        # x - x.detach() is 0 on purpose, and has the gradient of x
        if not both or calls.origin(learns) == calls.origin(fixed):
            continue
        culprit = at_call(_fixed_pass(calls, learns, fixed) or call, evidence)
        alias = evidence.inspection.alias_at if evidence.inspection is not None else None
        yield learning_claim(
            rule,
            location_key(call.site) or ("itself",),
            title=f"the loss compares the model with itself: it is {losses[-1]:.6g} in every step",
            explanation=f"At {_at(call)} two equal tensors are subtracted, one with gradients and "
            f"one without, and both were computed with {sorted(both)[0]}"
            + (f" and {len(both) - 1} more parameters" if len(both) > 1 else "")
            + ".",
            culprit=culprit if alias is None else Culprit(kind="module", location=alias),
            step=len(losses) - 1,
            weight=confidence(0.85, 0.3 if len(losses) >= _LONG else 0.0),
            notes=[
                ("loss", f"{losses[-1]:.6g}"),
                ("steps", len(losses)),
                ("asked at", culprit.location.place if alias and culprit.location else None),
            ],
            fix="compare with a frozen copy: copy.deepcopy(model).requires_grad_(False)",
            standing=WIRED,
        )
        return


def _is_constant(losses: tuple[float, ...]) -> bool:
    least, most = min(losses), max(losses)
    return (
        math.isfinite(most)
        and abs(least) > _NOTHING
        and most - least <= _THE_SAME * max(abs(least), abs(most))
    )


def _at(call: CallFacts) -> str:
    return call.site.place if call.site is not None else call.name


def _parameters(arguments: Iterable[ArgumentFacts]) -> set[str]:
    return {argument.parameter for argument in arguments if argument.parameter is not None}


def _fixed_pass(calls: StepCalls, learns: ArgumentFacts, fixed: ArgumentFacts) -> CallFacts | None:
    """The first call with parameters on the side without gradients, where its line in the user's
    code is another one than that of the other side."""
    firsts = []
    for side in (learns, fixed):
        with_parameters = (
            calls.calls[index]
            for index in sorted(calls.behind(side)[0])
            if calls.calls[index].name in LAYERS and _parameters(calls.calls[index].arguments)
        )
        firsts.append(next(with_parameters, None))
    one, other = firsts
    if one is None or other is None or other.site is None or other.site == one.site:
        return None
    return other
