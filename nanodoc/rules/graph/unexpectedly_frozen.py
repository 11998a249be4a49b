"""## What it checks
Models in training that are completely frozen, whose last layer is frozen at its initial values
while earlier ones train (for a transformers classifier, also while peft adapters train), in which
only normalisation layers train, whose adapters are frozen at zero, or that hold one module under
two names (a target network that should be a copy) and freeze it at its initial values. Also layers
that the user's code froze at their first values and gave to an optimizer: early steps are run again
with them trained, and reported if the loss then comes a tenth further, or to half; as an info if no
trained layer stands before them. A frozen backbone under a trained head is the normal use of
freezing and is not reported.

## Why it matters
A part that is frozen by mistake never learns, and no error is raised.

## Example
    for name, p in model.named_parameters():
        p.requires_grad = "backbone" in name      # the wrong way round

## Fix
Freeze only what should stay fixed.

## See also
ND502 loss-without-grad, ND517 ineffective-freeze
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    FROZEN,
    FrozenFacts,
)
from nanodoc.facts.trials import ThawedFacts
from nanodoc.rules.base import count, effects


@rule(
    "ND508",
    "unexpectedly-frozen",
    "warning",
    "frozen where it should train",
    needs=("ownership",),
    preflight="optimizer",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    if (thawed := evidence.pattern.thawed if evidence.pattern is not None else None) is not None:
        yield _would_train(rule, evidence, thawed)
        return
    frozen = facts.frozen if facts is not None else None
    told = _told(evidence, frozen) if frozen is not None and frozen.frozen else None
    if frozen is None or told is None:
        return
    severity, title, why = told
    yield Claim(
        root=("failure",)
        if evidence.failure is not None and severity == "critical"
        else ("owner", "frozen"),
        specificity=Specificity.SPECIAL,
        stage=Stage.OWNERSHIP,
        position=-1,
        finding=rule.finding(
            severity=severity,
            confidence=confidence(
                0.6,
                0.3 if frozen.frozen_at else 0.0,
                0.4 if evidence.failure or frozen.in_optimizer else 0.0,
            ),
            title=title,
            explanation=why
            + (" The optimizer got frozen parameters anyway." if frozen.in_optimizer else ""),
            culprit=Culprit(
                kind="parameter",
                module=frozen.head_frozen,
                parameter=frozen.head_frozen_parameter
                or next(iter(frozen.zero), frozen.tensors[-1]),
                location=frozen.twice[2] if frozen.twice is not None else frozen.frozen_at,
            ),
            phase="setup",
            step=None,
            effects=effects(evidence),
            fixes=(Fix(title="freeze only what should stay fixed", confidence="likely"),),
        ),
    )


def _told(evidence: Evidence, frozen: FrozenFacts) -> tuple[str, str, str] | None:
    """Severity, title and explanation; None where freezing may be meant."""
    graph = evidence.graph
    graph_frozen = (
        graph is not None
        and bool(graph.parameters)
        and all(p.state == FROZEN for p in graph.parameters)
    )
    if not frozen.trainable and (graph_frozen or evidence.failure is not None):
        return (
            "critical",
            "every parameter is frozen",
            f"requires_grad is False on all {frozen.frozen} parameters, so the loss has no graph "
            "and nothing can learn.",
        )
    if frozen.twice is not None:
        one, other, _ = frozen.twice
        return (
            "warning",
            f"{other} is {one} itself, and both are frozen at their initial values",
            f"Both names refer to the same module. The line that froze {other}, which should be a "
            f"copy, has also frozen {one}.",
        )
    if frozen.head_frozen:
        return (
            "warning",
            f"the last layers ({frozen.head_frozen}) are frozen at their initial values",
            f"{frozen.head_frozen} was never loaded from a checkpoint and requires no gradient, "
            + (
                "while adapters train: peft trains a new last layer only if you pass the task "
                "(task_type) or the layer (modules_to_save)."
                if frozen.beside_adapters
                else "while layers right before it train and earlier ones don't."
            ),
        )
    if frozen.zero:
        more = f" and {count(len(frozen.zero) - 1, 'more weight')}" if len(frozen.zero) > 1 else ""
        return (
            "warning",
            f"{frozen.zero[0]}{more} are frozen at zero"
            if more
            else f"{frozen.zero[0]} is frozen at zero",
            "All elements are zero, like a new adapter's last layer, and requires_grad is False: "
            "the layer's output stays zero, and the layers before it learn nothing.",
        )
    if frozen.only_norms_train and not frozen.trainable > frozen.frozen:
        return (
            "warning",
            "only normalisation layers train",
            f"{count(frozen.frozen, 'parameter')} are frozen and the {frozen.trainable} that train "
            "all belong to normalisation layers.",
        )
    return None


def _stands_between(evidence: Evidence, thawed: ThawedFacts) -> bool:
    """A frozen layer is given what trained layers have made. Frozen first layers are a method:
    random features, a reservoir, a target that nobody can predict."""
    calls = evidence.inspection.calls.calls if evidence.inspection is not None else ()
    return any(
        argument.parameter in thawed.parameters and any(one.requires_grad for one in call.arguments)
        for call in calls
        for argument in call.arguments
    )


def _would_train(rule: Rule, evidence: Evidence, thawed: ThawedFacts) -> Claim:
    """Of parameters with which trained the run comes further."""
    first, others = thawed.parameters[0], len(thawed.parameters) - 1
    more = f" and {count(others, 'more parameter')}" if others else ""
    verb = "are" if others else "is"
    return Claim(
        root=("owner", "frozen"),
        specificity=Specificity.SPECIAL,
        stage=Stage.OWNERSHIP,
        position=-1,
        finding=rule.finding(
            severity="warning" if _stands_between(evidence, thawed) else "info",
            confidence=confidence(0.6, max(0.0, 1 - thawed.trained / (thawed.loss or 1.0)) / 2),
            title=f"{first}{more} {verb} frozen at the first values, and would help if trained",
            explanation="requires_grad is False, the values are those of the initialisation, and "
            f"the optimizer was given the frozen parameters. Run again with them trained, "
            f"{thawed.steps} early steps end at a loss of {thawed.trained:.3g} instead of "
            f"{thawed.loss:.3g}.",
            culprit=Culprit(kind="parameter", parameter=first, location=thawed.location),
            phase="setup",
            step=None,
            effects=effects(evidence),
            fixes=(Fix(title="freeze only what should stay fixed", confidence="likely"),),
        ),
    )
