"""## What it checks
A softmax over a tensor of three or more dimensions whose output is multiplied or compared with
labels of 0 and 1, as in a Dice loss: the labels sum to 1 along one dimension, but the softmax runs
over a different one. Scores that the step also normalises over the classes are not reported.

## Why it matters
Pixels or samples then compete instead of classes: no pixel's probabilities sum to 1, and most are
close to 0.

## Example
    probabilities = scores.softmax(-1)                  # (batch, classes, height, width)
    overlap = (probabilities * one_hot).sum((2, 3))

## Fix
    probabilities = scores.softmax(1)

## See also
ND620 singleton-softmax, ND133 attention-over-queries
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import CASTS, CLAMPS, COPIES, POWERS, SOFTMAXES

_FEWEST = 3  # dimensions: in a matrix both directions, and masks that select, are usual
_KEEPS_THE_ORDER = (*COPIES, *CASTS, *CLAMPS)
_ONE_BY_ONE = (*POWERS, "log", "neg", "add")


@rule(
    "ND651",
    "misplaced-softmax",
    "critical",
    "a softmax over a dimension that is not the classes'",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        of_labels = call.notes.class_dimension
        by_definition = call.name == "nll_loss" and len(call.arguments[0].shape) > 1
        classes = 1 if by_definition else of_labels
        made = _softmax(calls, call) if classes is not None else None
        if classes is None or made is None:
            continue
        shape, dim = made.shape, made.options.get("dim")
        fewest = len(call.arguments[0].shape) if by_definition else _FEWEST
        if not isinstance(dim, int) or len(shape) < fewest or dim % len(shape) == classes:
            continue
        if _is_one_of_two(calls, made):
            continue
        dim %= len(shape)
        yield learning_claim(
            rule,
            location_key(made.site) or ("softmax", made.index),
            title=f"{made.name} over dimension {dim} (of {shape[dim]}), but the classes are in "
            f"dimension {classes:.0f} (of {shape[int(classes)]})",
            explanation=f"{call.name} takes log-probabilities of classes along dimension 1."
            if by_definition
            else f"{call.name} combines it with labels of 0 and 1 of shape {list(shape)}, which "
            f"sum to 1 everywhere along dimension {classes:.0f}, and along no other.",
            culprit=at_call(made, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.8, 0.5),
            notes=[("labels at", call.site.place if call.site is not None else None)],
            fix=f"dim={classes:.0f}",
            standing=WIRED,
        )
        return


def _is_one_of_two(calls: StepCalls, made: CallFacts) -> bool:
    """The same scores are normalised in another direction as well, where two sets are matched."""
    scores = _identity(calls, made)
    return any(
        other.index != made.index and other.arguments and _identity(calls, other) == scores
        for other in calls.calls
        if other.name in (*SOFTMAXES, "cross_entropy")
    )


def _takes_rows(loss: CallFacts, made: CallFacts) -> bool:
    """Some rows of the scores, and all of their classes."""
    whole = made.arguments[0].shape if made.name == "getitem" and made.arguments else ()
    return loss.name == "nll_loss" and len(whole) > 1 and whole[1:] == made.shape[1:]


def _identity(calls: StepCalls, call: CallFacts) -> object:
    origin = calls.origin(call.arguments[0])
    return origin.index if isinstance(origin, CallFacts) else origin.leaf


def _softmax(calls: StepCalls, call: CallFacts) -> CallFacts | None:
    """The one whose values, each by itself and in their order, are one of the call's arguments."""
    argument = next((a for a in call.arguments if a.requires_grad), None)
    made = calls.maker(argument) if argument is not None else None
    while made is not None and (
        made.name in (*_KEEPS_THE_ORDER, *_ONE_BY_ONE) or _takes_rows(call, made)
    ):
        learning = [a for a in made.arguments if a.requires_grad]
        made = calls.maker(learning[0]) if len(learning) == 1 else None
    rows = 1 if call.name == "nll_loss" else 0  # some of them may have been picked
    same = made is not None and argument is not None and made.shape[rows:] == argument.shape[rows:]
    return made if made is not None and same and made.name in SOFTMAXES else None
