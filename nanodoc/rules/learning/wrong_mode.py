"""## What it checks
Whether all dropout and batch norm layers next to trained layers were in eval mode in the last
step's forward, and which eval() caused it: critical if batch norm is among them, a warning for
dropout only. If the rest of the model is in training mode, only batch norm layers whose running
statistics are still mean 0 and variance 1 are reported. Frozen parts, or only some layers in eval
mode, are taken as intended.

## Why it matters
The usual cause is a validation that calls model.eval() without a model.train() after it:
regularisation is off, running statistics freeze.

## Example
    def validate(): model.eval(); ...
    for epoch in ...: train(); validate()      # train() never calls model.train()

## Fix
    model.train()

## See also
ND625 frozen-statistics
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import ModeFacts
from nanodoc.facts.loop import (
    LoopFacts,
    ModeChange,
)
from nanodoc.rules.base import location_key


@rule(
    "ND613",
    "wrong-mode",
    "critical",
    "the model trains in eval mode",
    needs=(
        "inspection",
        "loop",
    ),
    preflight="modes",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, loop = evidence.inspection, evidence.loop
    if inspection is None or loop is None:
        return
    learning = [mode for mode in inspection.modes if mode.trainable]
    idle = [mode for mode in learning if not mode.training]
    # some parts in eval mode are put there on purpose
    if not idle or len(idle) < len(learning) or inspection.training:
        # but not with statistics of no batch
        idle = [mode for mode in idle if mode.untouched and _by_a_parent(loop, mode.module)]
        if not idle:
            return
    change = _change(loop, {mode.module for mode in idle})
    since = next((step for step, training in reversed(loop.training_at) if not training), None)
    began = loop.training_at[0][1] if loop.training_at else True
    if change is None and began and since is None and not loop.observed:
        return
    yield Claim(
        root=location_key(change.location if change else None) or ("mode",),
        specificity=Specificity.EXACT,
        stage=Stage.LOOP,
        finding=rule.finding(
            # without dropout a model learns all the same, and some train so on purpose
            severity=rule.severity
            if any(mode.momentum is not None or "Norm" in mode.module_type for mode in idle)
            else "warning",
            confidence=confidence(
                0.7, 0.5 if change is not None else 0.2, 0.3 if len(idle) > 1 else 0.0
            ),
            title="the model trains in eval mode"
            if not inspection.training
            else f"{_what(idle)} trained in eval mode, with initial running statistics",
            explanation=f"{_what(idle)} {'behaves' if len(idle) == 1 else 'behave'} as in "
            "inference while the parameters around learn: dropout drops nothing, and batch "
            "norm uses its running statistics without updating them.",
            culprit=Culprit(
                kind="module",
                module=change.module if change else idle[0].module,
                module_type=None if change else idle[0].module_type,
                location=change.location if change else idle[0].made_at,
            ),
            phase="forward",
            step=change.step if change is not None and change.step is not None else since,
            evidence=tuple((mode.module, f"{mode.module_type} in eval mode") for mode in idle[:4]),
            fixes=(
                Fix(
                    title="call model.train() before the training steps, after every validation",
                    confidence="likely",
                ),
            ),
        ),
    )


def _by_a_parent(loop: LoopFacts, module: str) -> bool:
    """eval() was called on a module above it, not on the layer itself."""
    return any(
        change.module != module and _inside(module, change.module) for change in loop.mode_changes
    )


def _change(loop: LoopFacts, idle: set[str]) -> ModeChange | None:
    """The eval() that covers all these modules; it calls that of every module below."""
    covering = [
        change
        for change in loop.mode_changes
        if change.location is not None and all(_inside(name, change.module) for name in idle)
    ]
    return min(covering, key=lambda mode: len(mode.module), default=None)


def _inside(name: str, parent: str) -> bool:
    return parent == "" or name == parent or name.startswith(parent + ".")


def _what(idle: list[ModeFacts]) -> str:
    kinds: dict[str, int] = {}
    for mode in idle:
        kinds[mode.module_type] = kinds.get(mode.module_type, 0) + 1
    return " and ".join(
        f"{kind} ({number}×)" if number > 1 else kind for kind, number in kinds.items()
    )
