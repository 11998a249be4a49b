"""## What it checks
The output of a softmax or sigmoid that reaches, through nothing but views and copies, a loss that
applies it itself (cross_entropy, binary_cross_entropy_with_logits; an overlap loss configured for
logits), or one that expects logarithms (nll_loss, kl_div). log_softmax before cross_entropy is
harmless.

## Why it matters
Probabilities used as logits differ by at most 1: with C classes the loss cannot fall below ln(C − 1
+ e) − 1. Training looks slow and plateaus early.

## Example
    def forward(self, x):
        return F.softmax(self.head(x), dim=1)
    ...
    loss = F.cross_entropy(model(x), y)

## Fix
Return `self.head(x)`; apply softmax where probabilities are read.

## See also
ND303 log-of-softmax, ND620 singleton-softmax
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import Bypass
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_into_the_loss, calls_of, op_of
from nanodoc.rules.rewrite import unwrapped
from nanodoc.vocabulary.calls import NORMALISERS

_APPLIES = {
    "cross_entropy": "log_softmax",
    "binary_cross_entropy_with_logits": "sigmoid",
    "multilabel_soft_margin_loss": "sigmoid",
    "sigmoid_focal_loss": "sigmoid",
}

_SQUASHES = {"sigmoid": ("sigmoid", "logsigmoid"), "softmax": ("softmax", "log_softmax")}
"""What must not be applied to what a sigmoid or softmax gave."""

_WANTS_LOGS = ("nll_loss", "kl_div")


@rule(
    "ND612",
    "double-softmax",
    "critical",
    "softmax or sigmoid before a loss that already applies it",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        given = call.arguments[0]
        made = calls.origin(given)
        if (
            not isinstance(made, CallFacts)
            or made.name not in (*NORMALISERS, "log_softmax")
            or not given.requires_grad
            or not made.arguments
        ):
            continue
        if call.name in _APPLIES and made.name in NORMALISERS:
            yield _normalised_twice(rule, evidence, call, made, _APPLIES[call.name])
            return
        if call.name in _WANTS_LOGS and made.name in NORMALISERS:
            yield _log_missing(rule, evidence, call, made)
            return
        if call.name in (*_WANTS_LOGS, "cross_entropy") and _over_the_batch(made, call):
            yield _wrong_dimension(rule, evidence, call, made)
            return
        # a distribution normalises its logits
        if call.name == "logsumexp" and made.name == "softmax":
            yield _normalised_twice(rule, evidence, call, made, "softmax")
            return
        if call.name in _SQUASHES.get(made.name, ()) and _in_the_same_way(made, call):
            yield _normalised_twice(rule, evidence, call, made, made.name)
            return


def _in_the_same_way(made: CallFacts, call: CallFacts) -> bool:
    """A softmax over the same dimension."""
    if made.name == "sigmoid":
        return True
    alike = call.name == "log_softmax" or made.shape == call.arguments[0].shape
    return alike and call.options.get("dim") == made.options.get("dim")


def _normalised_twice(
    rule: Rule, evidence: Evidence, call: CallFacts, made: CallFacts, applies: str
) -> Claim:
    classes = call.classes
    taker = "a distribution of logits" if call.name == "logsumexp" else call.name
    floor = None
    if classes and made.name == "softmax" and classes > 1:
        floor = math.log(classes - 1 + math.e) - 1  # all probability on the right class
    elif classes and made.name == "sigmoid" and classes > 1:
        # 1 for the right class, 0 for the others
        floor = math.log(1 + (classes - 1) * math.exp(-1))
    notes: list[tuple[str, object]] = [
        (f"{made.name} at", _where(made)),
        ("given to", f"{call.name} at {_where(call)}"),
    ]
    if floor is not None:
        notes.append(("lowest loss possible", round(floor, 4)))
    shape, dim = made.arguments[0].shape, made.options.get("dim")
    if made.name == "softmax" and len(shape) > 1 and dim == 0:
        notes.append(("softmax over", f"dimension 0 of {list(shape)}, the batch"))
    cap = (
        f" The loss cannot fall below {floor:.3g}, however right the model is."
        if floor is not None
        else ""
    )
    return _claim(
        rule,
        evidence,
        call,
        made,
        title=f"{made.name} before {taker}, which already applies {applies}",
        explanation=f"{'It' if call.name == 'logsumexp' else call.name} takes the model's raw "
        "outputs (logits). Given probabilities between 0 and 1, it sees almost no difference "
        f"between classes, and the gradients pass through a softmax twice.{cap}",
        notes=notes,
        fix=f"remove the {made.name} and return the logits; apply it only where probabilities are "
        "read",
    )


def _over_the_batch(made: CallFacts, call: CallFacts) -> bool:
    """A log_softmax over dimension 0 of what then is compared class by class."""
    given = made.arguments[0].shape
    return (
        made.name == "log_softmax"
        and len(given) > 1
        and made.options.get("dim") in (0, -len(given))
        and made.shape == call.arguments[0].shape
    )


def _wrong_dimension(rule: Rule, evidence: Evidence, call: CallFacts, made: CallFacts) -> Claim:
    shape = list(made.arguments[0].shape)
    return _claim(
        rule,
        evidence,
        call,
        made,
        title=f"log_softmax over dimension 0, the batch, before {call.name}",
        explanation=f"Its input is {shape}: the probabilities of one class over all samples sum "
        "to 1, not those of one sample over the classes. Samples compete with each other.",
        notes=[
            ("input shape", str(shape)),
            ("dim", made.options.get("dim")),
            ("given to", f"{call.name} at {_where(call)}"),
        ],
        fix="dim=1 (or -1): normalise over the classes",
    )


def _log_missing(rule: Rule, evidence: Evidence, call: CallFacts, made: CallFacts) -> Claim:
    return _claim(
        rule,
        evidence,
        call,
        made,
        title=f"{call.name} gets the {made.name}'s probabilities, but expects their logarithm",
        explanation=f"{call.name} expects log-probabilities. With probabilities it is linear in "
        "them: the "
        "loss is negative or nearly flat, and the gradient vanishes exactly where the model "
        "is most wrong.",
        notes=[
            (f"{made.name} at", _where(made)),
            ("given to", f"{call.name} at {_where(call)}"),
            ("its value", call.notes.value),
        ],
        fix=f"use {'log_softmax' if made.name == 'softmax' else 'logsigmoid'} instead of "
        f"{made.name}" + (", or cross_entropy on the logits" if call.name == "nll_loss" else ""),
    )


def _claim(
    rule: Rule,
    evidence: Evidence,
    call: CallFacts,
    made: CallFacts,
    *,
    title: str,
    explanation: str,
    notes: list[tuple[str, object]],
    fix: str,
) -> Claim:
    blamed = made if made.site is not None else call
    return Claim(
        root=location_key(blamed.site) or ("normalised", call.index),
        specificity=Specificity.EXACT,
        stage=Stage.WIRING,
        finding=rule.finding(
            confidence=confidence(
                0.8,
                0.6 if made.site is not None and call.site is not None else 0.3,
                0.3 if call.index in _differentiated(evidence) else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=at_call(blamed, evidence),
            phase="forward",
            step=0,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(_without(blamed, fix),),
        ),
    )


def _differentiated(evidence: Evidence) -> tuple[int, ...]:
    """Positions of the calls that made the losses themselves, not a part of them."""
    calls = calls_of(evidence)
    return calls.losses if calls is not None else ()


def _without(call: CallFacts, title: str) -> Fix:
    """The fix that takes the call out, where what comes instead needs no other call."""
    remedy = (
        Bypass(location=call.site, op=call.name, whole_run=True) if call.site is not None else None
    )
    leaves = title.startswith("remove")
    return Fix(
        title=title,
        patch=unwrapped(op_of(call)) if leaves else None,
        confidence="likely",
        remedy=remedy if leaves else None,
    )


def _where(call: CallFacts) -> str:
    return call.site.place if call.site is not None else "the recipe's criterion"
