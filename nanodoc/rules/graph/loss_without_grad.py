"""## What it checks
A loss that does not require gradient although nothing on its path was cut: it depends on no
trainable parameter, or gradients were switched off permanently before training began.

## Why it matters
backward() raises "element 0 of tensors does not require grad and does not have a grad_fn". Making
the loss require gradient only silences that and trains nothing.

## Example
    torch.set_grad_enabled(False)      # left over from evaluation

## Fix
Compute the loss from the model's output; switch gradients off in a `with` block.

## See also
ND501 cut-graph, ND508 unexpectedly-frozen
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import (
    UNUSED,
)
from nanodoc.rules.base import effects, location_key
from nanodoc.rules.graph.cut_claims import (
    failure_family,
    names,
    placed,
)


@rule(
    "ND502",
    "loss-without-grad",
    "critical",
    "the loss does not require gradient",
    needs=("graph",),
    preflight="gradients",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    if graph is None or placed(graph) or failure_family(evidence) not in (None, "no-grad"):
        return
    if graph.loss_needs_grad and not graph.loss_rewrapped:
        return
    trainable = [p for p in graph.parameters if p.state != "frozen"]
    if not trainable and graph.parameters:
        return  # ND508 says who froze them
    if (
        evidence.failure is None
        and evidence.stats is not None
        and any(p.moved for p in evidence.stats.parameters)
    ):
        return  # gradients come from elsewhere: torch.func
    if (
        evidence.failure is None
        and evidence.loop is not None
        and evidence.loop.observed
        and not graph.losses
    ):
        return  # nothing was differentiated: a buffer that fills first
    site = graph.loss_site
    off = evidence.grad_switched_off_at
    if evidence.grad_off_since_build or off is not None:
        where = off or (site.site if site else None)
        title = "gradients were switched off before training began"
        why = (
            "torch.set_grad_enabled(False) was called outside of any `with`, so it applies to "
            "everything that follows."
        )
        fix = "use `with torch.no_grad():` around the code that needs it"
    else:
        where = site.site if site else None
        title = "the loss does not depend on any trainable parameter"
        why = "No op on the way to the loss reads a parameter that requires gradient."
        fix = "compute the loss from the model's output"
    used = [p.name for p in trainable if p.state != UNUSED]
    yield Claim(
        root=location_key(where) or ("failure",),
        specificity=Specificity.FAMILY,
        position=site.index if site else 0,
        finding=rule.finding(
            confidence=confidence(0.7, 0.4 if where else 0.0, 0.4 if evidence.failure else 0.0),
            title=title,
            explanation=why
            + (f" Read, but without an effect on the loss: {names(used)}." if used else ""),
            culprit=Culprit(
                kind="op",
                op=site.op if site else None,
                module=site.module if site else None,
                location=where,
            ),
            phase="forward",
            step=graph.step,
            effects=effects(evidence),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )
