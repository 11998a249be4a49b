"""## What it checks
Trainable parameters in an optimizer that no op reads in any step, or whose results the loss does
not depend on. Reported as information (unused heads and experts are common); as a warning if
forward builds a new layer of the same kind in their place, or if an optimizer keeps stepping after
a backward while none of its parameters has a gradient in 200 steps or more.

## Why it matters
They stay at their initial values, and DistributedDataParallel waits for their gradients.

## Example
    self.norm2 = nn.LayerNorm(d)      # forward() calls norm1 twice

## Fix
Use the layer, or remove it.

## See also
ND501 cut-graph, ND516 layer-built-in-forward
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    UNREACHED,
    UNUSED,
    GraphFacts,
    ParameterState,
)
from nanodoc.facts.loop import IN_VAIN, NEVER_DIFFERENTIATED, LoopMisuse
from nanodoc.rules.base import count
from nanodoc.rules.graph.cut_claims import (
    names,
)

_SEVERAL = 3  # steps: one may come before its network is first used
_LONG = 200  # steps


@rule(
    "ND505",
    "unused-parameter",
    "warning",
    "a parameter never takes part",
    needs=("graph",),
    preflight="gradients",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Only warns where there is evidence of a slip: a sibling of the same kind was called in its
    place."""
    graph = evidence.graph
    if evidence.failure is not None or (graph is not None and not graph.loss_needs_grad):
        return
    misuse = _in_vain(evidence)
    if graph is None:
        if misuse is not None:
            yield _without_gradient(rule, evidence, misuse)
        return
    hidden = {u.owner for u in evidence.ownership.unregistered} if evidence.ownership else set()
    # without a backward, no gradient reaches anything
    forgotten = evidence.loop is not None and evidence.loop.misuse(NEVER_DIFFERENTIATED)
    groups: dict[str, list[ParameterState]] = {}
    for p in graph.parameters:
        idle = (
            p.state in ((UNUSED,) if forgotten else (UNUSED, UNREACHED))
            and p.optimizers
            and p.name in evidence.never_got_gradient
        )
        if idle and p.name not in evidence.moved_by_hand and p.module not in hidden:
            groups.setdefault(_top(graph, p.module), []).append(p)
    quiet: dict[bool, dict[str, list[ParameterState]]] = {}
    held = set(misuse.parameters) if misuse is not None else set()
    if misuse is not None and any(p.name in held for each in groups.values() for p in each):
        yield _without_gradient(rule, evidence, misuse)
    for module, members in groups.items():
        if all(p.name in held for p in members):
            continue
        unread = all(p.state == UNUSED for p in members)
        if unread and members[0].twin is not None and graph.fresh_parameters:
            yield _claim(rule, evidence, graph, {module: members}, unread=unread, slip=True)
        else:
            quiet.setdefault(unread, {})[module] = members
    for unread, layers in quiet.items():
        yield _claim(rule, evidence, graph, layers, unread=unread, slip=False)


def _in_vain(evidence: Evidence) -> LoopMisuse | None:
    """An optimizer that stepped several times, and none of whose parameters ever had a
    gradient."""
    misuse = evidence.loop.misuse(IN_VAIN) if evidence.loop is not None else None
    if misuse is None or misuse.steps < _SEVERAL:
        return None
    return misuse if set(misuse.parameters) <= set(evidence.never_got_gradient) else None


def _without_gradient(rule: Rule, evidence: Evidence, misuse: LoopMisuse) -> Claim:
    """The line is that of the backward that should have reached the optimizer's parameters."""
    backward, step = misuse.other, misuse.location
    by = f"The backward at {backward.place} before it" if backward else "Backward"
    return Claim(
        root=("unused", misuse.parameters[0]),
        specificity=Specificity.EXACT,
        stage=Stage.WIRING,
        finding=rule.finding(
            # in a short run, a part may have yet to begin
            severity="warning" if evidence.steps_run >= _LONG else "info",
            confidence=confidence(0.6, 1 - 2 / (1 + misuse.steps)),
            title=f"the optimizer of {count(len(misuse.parameters), 'parameter')} steps, but none "
            "of them ever has a gradient",
            explanation=f"{by} reaches none of {names(list(misuse.parameters))}; "
            f"they stay at their initial values in {count(evidence.steps_run, 'step')}.",
            culprit=Culprit(kind="optimizer", location=backward or step),
            phase="backward",
            step=misuse.first_step,
            evidence=(("watched optimizer steps without a gradient", misuse.steps),),
            fixes=(
                Fix(
                    title="check what lies between these parameters and the loss: detach(), "
                    ".data, a function under no_grad()",
                    confidence="likely",
                ),
            ),
        ),
    )


def _claim(
    rule: Rule,
    evidence: Evidence,
    graph: GraphFacts,
    layers: dict[str, list[ParameterState]],
    *,
    unread: bool,
    slip: bool,
) -> Claim:
    """One finding for the idle `layers`, by their paths."""
    module, first = next((path, members[0]) for path, members in layers.items())
    members = [parameter for layer in layers.values() for parameter in layer]
    of = f"{len(layers)} layers" if len(layers) > 1 else module or "the model"
    told: list[tuple[str, Any]] = [("elements", sum(p.numel for p in members))]
    if len(layers) > 1:
        told.append(("layers", names(list(layers))))
    return Claim(
        root=("unused", module),
        specificity=Specificity.FALLBACK,
        stage=Stage.NOTE,
        position=-1,
        finding=rule.finding(
            severity="warning" if slip else "info",
            confidence=confidence(0.6, 0.3 if evidence.steps_run > 1 else 0.0),
            title=f"{count(len(members), 'parameter')} of {of} "
            + (
                "never used in the forward pass"
                if unread
                else "used, but the loss does not depend on them"
            ),
            explanation=f"In {count(evidence.steps_run, 'step')} no gradient reached "
            f"{names([p.name for p in members])}; "
            "the optimizer holds them, and they stay at their initial values.",
            culprit=Culprit(
                kind="parameter",
                module=module or None,
                module_type=first.module_type,
                parameter=first.name,
                location=first.registered_at,
            ),
            phase="forward",
            step=graph.step,
            evidence=tuple(told),
        ),
    )


def _top(graph: GraphFacts, module: str) -> str:
    """The highest ancestor of a module that is idle as a whole."""
    best, parts = module, module.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:length])
        below = [p for p in graph.parameters if p.name.startswith(path + ".")]
        if any(p.state not in (UNUSED, UNREACHED) for p in below):
            break
        best = path
    return best
