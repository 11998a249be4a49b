"""ND606: a run that had been diverging before the step that broke."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.evidence import Evidence
from nanodoc.report.model import Culprit, Finding, Fix
from nanodoc.rules.base import Claim, Rule, confidence, effects, link, replay_row
from nanodoc.rules.overflow import overflowed

# Far beyond any healthy spike: a loss a hundred times its start, and values whose square nears float32's end.
_GROWTH = 100.0
_ENORMOUS = 1e12


def _divergence(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses = [abs(loss) for loss in evidence.losses if math.isfinite(loss)]
    norms = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    if not losses or max(losses[-1], *losses) < _GROWTH * max(losses[0], 1e-6):
        return
    for birth in evidence.births:
        largest = max((fact.absmax for fact in birth.op.inputs if fact.absmax is not None), default=0.0)
        if not overflowed(birth) or largest < _ENORMOUS:
            continue
        site, rate = next((s for s in evidence.optimizer_sites if s is not None), None), next(iter(evidence.learning_rates), None)
        overflow = birth.site.location
        where = f"{birth.site.short} at {overflow.file}:{overflow.line}" if overflow else birth.site.short
        began = next((i for i, loss in enumerate(losses) if loss > 2 * losses[0]), 0)
        yield Claim(
            root=("optimizer", 0),  # however many ops overflowed, the updates are the one root
            fit=30,
            order=birth.site.index,
            finding=Finding(
                code=rule.code,
                name=rule.name,
                severity=rule.severity,
                confidence=confidence(0.5 if evidence.reproduced == "bitwise" else 0.2, 0.8, 0.4 if len(losses) > 3 else 0.0),
                title=f"the run diverged: the loss grew from {losses[0]:.3g} to {losses[-1]:.3g} before it overflowed",
                explanation=f"Since step {began} the loss is more than twice its start, the gradient norm reached {max(norms, default=math.nan):.3g}, and "
                f"{where} finally overflowed with inputs of {largest:.3g}. The op is where it ended; the updates are where it began.",
                culprit=Culprit(kind="optimizer", op=birth.site.op, module=birth.site.module, module_type=birth.site.module_type, location=site or overflow),
                phase="optimizer",
                step=evidence.trip.step if evidence.trip else evidence.failure_step,
                evidence=(
                    ("loss at the start", losses[0]), ("last finite loss", losses[-1]), ("growing since step", began),
                    ("learning rate", rate), ("overflowed at", where), ("largest value there", largest),
                ),
                chain=tuple(link(op) for op in birth.chain),
                effects=effects(evidence),
                experiments=replay_row(evidence),
                fixes=(Fix(title="lower the learning rate, clip the gradient norm, or shrink the initial weights", confidence="likely"),),
            ),
        )  # fmt: skip


RULES = (
    Rule(
        code="ND606",
        name="divergence",
        severity="critical",
        summary="the loss had been growing before it became non-finite",
        check=_divergence,
        doc="""\
## What it checks
A step whose values overflowed, in a run whose loss had grown at least a hundredfold before: the op that finally
overflowed is not the cause.

## Why it matters
Each update makes the next gradient larger, until some op passes the end of the dtype. Guarding that op moves the
failure one line on.

## Example
    torch.optim.SGD(model.parameters(), lr=10.0)

## Fix
Lower the learning rate, clip the gradient norm, or shrink the initial weights.

## Options
None. Growth by 100 and values of 1e12 are far beyond healthy spikes (a spike recovers, and doesn't overflow).

## See also
ND204 overflow, ND616 optimizer-made-nan
""",
    ),
)
