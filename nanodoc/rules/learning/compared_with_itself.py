"""## What it checks
The last step subtracts two equal tensors, one with gradients and one without, that were computed
with the same parameters in this step. Reported where the loss is the same number in every step,
with gradients that are not zero; and where the difference goes into an exp that weights values
which no network has computed in this step, as PPO's ratio of probabilities weights advantages.

Also a loss function whose target is its prediction, detached: such a term has no gradient at all.

## Why it matters
The reference changes with the model. A loss that never changes says nothing about progress, and the
reference, such as DPO's reference model, does not hold the model back. A ratio that is 1 in every
step clips nothing: the policy runs away from the one that made its data.

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
from nanodoc.vocabulary.calls import BINARIES, LAYERS, REGRESSION, SAME_NUMBERS

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
    if calls is None or len(losses) < SHORTEST:
        return
    if not evidence.grad_norms or not any(evidence.grad_norms):
        return
    constant = _is_constant(losses)
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index in reaching and _asks_itself(calls, call):
            yield _without_gradient(rule, evidence, call)
            return
    for call in calls.calls:
        if call.index not in reaching or not call.notes.same:
            continue
        learns, fixed = sorted(call.arguments[:2], key=lambda side: not side.requires_grad)
        both = _parameters(calls.behind(learns)[1]) & _parameters(calls.behind(fixed)[1])
        # x - x.detach() is 0 on purpose, and has the gradient of x
        if not both or _passes(calls, learns) == _passes(calls, fixed):
            continue
        ratio = None if constant else _ratio(calls, call)
        if not constant and ratio is None:
            continue
        culprit = at_call(_fixed_pass(calls, learns, fixed) or call, evidence)
        alias = evidence.inspection.alias_at if evidence.inspection is not None else None
        length = 0.3 if len(losses) >= _LONG else 0.0
        yield learning_claim(
            rule,
            location_key(call.site) or ("itself",),
            title=f"the loss compares the model with itself: it is {losses[-1]:.6g} in every step"
            if constant
            else f"a ratio of the model to itself is 1 in each of {_size(call)} values",
            explanation=f"At {_at(call)} two equal tensors are subtracted, one with gradients and "
            f"one without, and both were computed with {sorted(both)[0]}"
            + (f" and {len(both) - 1} more parameters" if len(both) > 1 else "")
            + (" in this very step." if ratio is not None else "."),
            culprit=culprit if alias is None else Culprit(kind="module", location=alias),
            step=len(losses) - 1,
            weight=confidence(0.85, length) if constant else confidence(0.8, length),
            notes=[
                ("loss", f"{losses[-1]:.6g}" if constant else None),
                ("ratio", _at(ratio) if ratio is not None else None),
                ("steps", len(losses)),
                ("asked at", culprit.location.place if alias and culprit.location else None),
            ],
            fix="compare with a frozen copy: copy.deepcopy(model).requires_grad_(False)"
            if constant
            else "keep what was computed when the data was made, and subtract that",
            standing=WIRED,
        )
        return


def _asks_itself(calls: StepCalls, call: CallFacts) -> bool:
    """The target of a loss function is what it is to say, whole and in its order."""
    if call.name not in (*REGRESSION, *BINARIES) or len(call.arguments) < 2:
        return False
    said, target = call.arguments[:2]
    if not said.requires_grad or target.requires_grad or said.shape != target.shape:
        return False
    made, same = calls.origin(said), calls.origin(target)
    passed = {one.name for side in (said, target) for one in calls.path(side)}
    return isinstance(made, CallFacts) and made == same and passed <= {*SAME_NUMBERS}


def _without_gradient(rule: Rule, evidence: Evidence, call: CallFacts) -> Claim:
    return learning_claim(
        rule,
        location_key(call.site) or ("itself",),
        title=f"the target of {call.name} is its own prediction",
        explanation="The two are the same values, one of them detached: the term has no gradient, "
        "whatever the model predicts. What it was to be compared with has no part in the loss.",
        culprit=at_call(call, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.85, 0.3 if len(evidence.losses) >= _LONG else 0.0),
        fix="give it the data as the target",
        standing=WIRED,
    )


def _is_constant(losses: tuple[float, ...]) -> bool:
    least, most = min(losses), max(losses)
    return (
        math.isfinite(most)
        and abs(least) > _NOTHING
        and most - least <= _THE_SAME * max(abs(least), abs(most))
    )


def _passes(calls: StepCalls, side: ArgumentFacts) -> set[int]:
    """Positions of the calls of layers that it was made of."""
    return {index for index in calls.behind(side)[0] if calls.calls[index].name in LAYERS}


def _ratio(calls: StepCalls, difference: CallFacts) -> CallFacts | None:
    """The exp of the difference, where it weights what no network has computed in this step."""
    ratios = [
        call
        for call in calls.calls[difference.index :]
        if call.name == "exp" and calls.origin(call.arguments[0]) == difference
    ]
    for call in calls.calls:
        if call.name != "mul" or len(call.arguments) != 2:
            continue
        for one, other in (call.arguments, call.arguments[::-1]):
            ratio = next((r for r in ratios if calls.origin(one) == r), None)
            if ratio is not None and not other.requires_grad and _is_older(calls, other):
                return ratio
    return None


def _is_older(calls: StepCalls, weights: ArgumentFacts) -> bool:
    """All that it is made of was there before the step: where the step itself makes the data, a
    ratio of 1 is right."""
    return not _passes(calls, weights) and all(
        calls.calls[index].arguments for index in calls.behind(weights)[0]
    )


def _size(call: CallFacts) -> int:
    return math.prod(call.shape)


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
