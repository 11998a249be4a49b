"""## What it checks
"AssertionError: No inf checks were recorded for this optimizer." GradScaler.step() checks the
gradients of the optimizer's parameters, and there were none. The step is re-run with its gradients
traced, to find out why.

## Why it matters
The message names neither parameter nor line. The scaler is not to blame: the graph is cut before
these parameters, they are not used in this step, or the optimizer holds tensors that the model no
longer has.

## Example
    return torch.as_tensor(predictions)      # a list of tensors becomes a tensor without a graph

## Fix
Fix the cut that is reported: keep the values as tensors (`torch.stack(predictions)`), take
trainable layers out of no_grad regions. If an optimizer is used only on some steps, call
`scaler.step()` for it only on those.

## See also
ND501 cut-graph, ND509 no-grad-region, ND507 stale-optimizer
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    UNREACHED,
    UNUSED,
    GraphFacts,
)
from nanodoc.rules.base import effects
from nanodoc.rules.graph.cut_claims import (
    cut_claim,
    failure_family,
    names,
)


@rule(
    "ND401",
    "no-inf-checks",
    "critical",
    "the GradScaler found no gradient of this optimizer to check",
    needs=("graph",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if failure_family(evidence) != "no-inf-checks":
        return
    graph = evidence.graph
    if graph is None:
        return
    note = (
        f"GradScaler.step() found no gradient in this optimizer at step {evidence.failure_step}, "
        "so it had nothing to check. "
    )
    empty = [
        n
        for n in _optimizers(graph)
        if all(p.norm is None for p in graph.parameters if n in p.optimizers)
    ]
    theirs = {p.name for p in graph.parameters if set(p.optimizers) & set(empty)}
    claimed = False
    for cut in graph.cuts:
        hurt = tuple(name for name in cut.orphans if name in theirs)
        if hurt:
            claimed = True
            yield cut_claim(rule, evidence, cut, hurt, specificity=Specificity.SPECIAL, note=note)
    if not claimed:
        position = empty[0] if empty else None
        yield _uncut_claim(rule, evidence, graph, theirs, position, note)


def _uncut_claim(
    rule: Rule,
    evidence: Evidence,
    graph: GraphFacts,
    theirs: set[str],
    position: int | None,
    note: str,
) -> Claim:
    """The claim where no cut of the graph took the gradients. `theirs` are the names of the
    optimizer's parameters, `position` is its place among the optimizers."""
    first = next((p for p in graph.parameters if p.name in theirs), None)
    states = {p.state for p in graph.parameters if p.name in theirs}
    why = (
        "its parameters are frozen"
        if states == {"frozen"}
        else "none of its parameters is used in this step"
        if states <= {UNUSED, UNREACHED} and states
        else "its parameters are not the model's"
    )
    sites = evidence.optimizer_sites
    where = (
        sites[position]
        if position is not None and position < len(sites)
        else (sites[0] if sites else None)
    )
    return Claim(
        root=("failure",),
        specificity=Specificity.SPECIAL,
        finding=rule.finding(
            confidence=confidence(0.5, 0.4 if first else 0.1),
            title=f"the GradScaler has no gradient to check: {why}",
            explanation=f"{note}{why[0].upper()}{why[1:]}"
            f"{': ' + names(sorted(theirs)) if theirs else ''}.",
            culprit=Culprit(
                kind="optimizer",
                module=first.module if first else None,
                parameter=first.name if first else None,
                location=first.registered_at if first and first.registered_at else where,
            ),
            phase="optimizer",
            step=evidence.failure_step,
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="call scaler.step() only for optimizers whose parameters got a gradient "
                    "in this step",
                    confidence="likely",
                ),
            ),
        ),
    )


def _optimizers(graph: GraphFacts) -> list[int]:
    return sorted({n for p in graph.parameters for n in p.optimizers})
