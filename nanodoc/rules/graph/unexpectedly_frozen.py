"""## What it checks
Models that are frozen as a whole although a training step is run, whose last layer is frozen at
fresh values while earlier ones train (of a classifier of transformers also beside adapters of
peft), in which only normalisation layers train, whose adapters are frozen at zero, or that hold one
module under two names (a target network that was to be a copy) and freeze it at fresh values. A
frozen backbone under a trained head is what freezing is for, and is
not reported.

## Why it matters
What is frozen by mistake never learns, and nothing says so.

## Example
    for name, p in model.named_parameters():
        p.requires_grad = "backbone" in name      # the wrong way round

## Fix
Freeze only what is meant to stay.

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
            + (
                " The optimizer was given frozen parameters all the same."
                if frozen.in_optimizer
                else ""
            ),
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
            fixes=(Fix(title="freeze only what is meant to stay", confidence="likely"),),
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
            f"One module has the two names. The line that froze {other}, as a copy that is to "
            f"follow, has frozen {one} with it.",
        )
    if frozen.head_frozen:
        return (
            "warning",
            f"the last layers ({frozen.head_frozen}) are frozen at their initial values",
            f"{frozen.head_frozen} was never loaded from a checkpoint and requires no gradient, "
            + (
                "while adapters train: peft trains a new last layer where it is told the task "
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
            "All elements are zero, as an adapter's last layer begins, and no gradient is "
            "required: what the layer gives is zero for ever, and what comes before it learns "
            "nothing.",
        )
    if frozen.only_norms_train and not frozen.trainable > frozen.frozen:
        return (
            "warning",
            "only normalisation layers train",
            f"{count(frozen.frozen, 'parameter')} are frozen and the {frozen.trainable} that train "
            "all belong to normalisation layers.",
        )
    return None
