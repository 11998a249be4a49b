"""## What it checks
An op between the last layer and a cross entropy: a relu, so that no class can be ruled out; a tanh,
so that no class can be more than e² times as likely as another; or a dropout in training mode,
which sets scores to 0 at random. Means over positions may follow it.

## Why it matters
The loss cannot get close to zero, and its gradient is lost where relu or dropout gave 0.

## Example
    nn.Sequential(..., nn.Linear(64, 10), nn.ReLU())

## Fix
    nn.Sequential(..., nn.Linear(64, 10))

## See also
ND612 double-softmax, ND629 unreachable-target
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import BINARY

_OF_SCORES = ("cross_entropy", BINARY)
_OF_LOGS = ("nll_loss",)
_SPOILERS = {
    "relu": "relu makes every score 0 or more: no class can be ruled out",
    "relu6": "relu6 keeps every score between 0 and 6: no class can be ruled out",
    "tanh": "tanh keeps scores between −1 and 1: no class can be e² times as likely as another",
    "dropout": "dropout sets scores to 0 at random, also that of the right class",
}


@rule(
    "ND633",
    "spoiled-logits",
    "warning",
    "relu, tanh or dropout between the last layer and a cross entropy",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in (*_OF_SCORES, *_OF_LOGS):
            continue
        spoiler = _spoiler(calls, call.arguments[0])
        if spoiler is None:
            continue
        kept = round(1.0 - float(spoiler.options.get("p", 0.5)), 2)
        yield learning_claim(
            rule,
            location_key(spoiler.site) or ("logits", spoiler.index),
            title=f"{spoiler.name} between the last layer and {call.name}",
            explanation=f"{_SPOILERS[spoiler.name]}.",
            culprit=at_call(spoiler, evidence),
            step=0,
            # of a few classes each one is hit
            weight=confidence(0.7, 0.4 if len(spoiler.shape) > 1 else 0.0),
            notes=[
                ("shape", str(spoiler.shape)),
                ("scores kept", kept if spoiler.name == "dropout" else None),
            ],
            fix=f"pass the last layer's output to {call.name}; {spoiler.name} belongs before that "
            "layer",
        )
        return


def _spoiler(calls: StepCalls, argument: ArgumentFacts) -> CallFacts | None:
    """The call that the scores come from as they are."""
    for _ in range(len(calls.calls)):
        made = calls.maker(argument)
        if made is None or not made.arguments or not made.requires_grad:
            return None
        if made.name == "dropout":
            idle = made.options.get("training") is False or made.options.get("p") == 0
            if not idle:
                return made
        elif made.name in _SPOILERS:
            return made
        elif not made.same_values and made.name != "log_softmax":
            return None
        argument = made.arguments[0]
    return None
