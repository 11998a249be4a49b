"""## What it checks
Weights that are non-finite after an optimizer step whose gradients were all finite.

## Why it matters
Adam's eps of 1e-8 is 0 in float16: a weight with a tiny gradient is divided by sqrt(0) + 0. A beta
of 1 makes the bias correction zero. The next step's loss is NaN, and every op of the model looks
guilty.

## Example
    model.half(); torch.optim.Adam(model.parameters(), eps=1e-8)

## Fix
Keep the parameters in float32 and let autocast cast; or use an eps that the dtype can hold.

## See also
ND209 uninitialised-parameter, ND210 vanishing-epsilon
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import SetOption
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import OptimizerFacts
from nanodoc.rules.base import effects
from nanodoc.rules.forward.floats import rounded
from nanodoc.rules.rewrite import number_in_call

_HUGE_GRADIENT = 1e15  # its square is beyond float32, and Adam keeps squares


@rule(
    "ND616",
    "optimizer-made-nan",
    "critical",
    "gradients finite, weights not: eps lost in half precision, bad betas",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for facts in evidence.optimizers:
        why, how_sure, fixes = _reason(facts, evidence)
        names = ", ".join(facts.parameters[:4]) + (
            f" and {len(facts.parameters) - 4} more" if len(facts.parameters) > 4 else ""
        )
        yield Claim(
            # the weights are the root: every non-finite value of the next step is an effect of
            # theirs
            root=("optimizer", facts.index),
            specificity=Specificity.SPECIAL,
            finding=rule.finding(
                confidence=confidence(0.7, how_sure),
                title=f"{facts.type} made {len(facts.parameters)} of its {facts.total_parameters} "
                "parameters non-finite from finite gradients",
                explanation=f"After step {evidence.optimizer_step} the gradients were finite and "
                f"{names} are not. {why}",
                culprit=Culprit(
                    kind="optimizer", parameter=facts.parameters[0], location=facts.built_at
                ),
                phase="optimizer",
                step=evidence.optimizer_step,
                evidence=(
                    ("parameters", list(facts.parameters[:16])),
                    ("dtypes", list(facts.dtypes)),
                    *(
                        (key, value)
                        for key, value in facts.hyperparameters.items()
                        if key in ("lr", "eps", "betas", "weight_decay", "momentum")
                    ),
                    *(
                        (f"{state.label} non-finite", state.nonfinite)
                        for state in facts.state_facts
                        if state.nonfinite
                    ),
                ),
                effects=effects(evidence),
                fixes=tuple(fixes),
            ),
        )


def _eps(facts: OptimizerFacts, value: float, title: str) -> Fix:
    patch = (
        number_in_call(facts.built_at, "eps", f"{value:g}") if facts.built_at is not None else None
    )
    return Fix(
        title=title,
        patch=patch,
        confidence="likely",
        remedy=SetOption(keyword="eps", value=value),
    )


def _reason(facts: OptimizerFacts, evidence: Evidence) -> tuple[str, float, list[Fix]]:
    """Why, how sure (the weight of that evidence), and the fixes; from hyperparameters, dtypes and
    the last gradients."""
    eps, lr, betas = (facts.hyperparameters.get(key) for key in ("eps", "lr", "betas"))
    for dtype in facts.dtypes:
        if isinstance(eps, float) and eps > 0 and rounded(eps, dtype) == 0:
            zeros = (
                f" {facts.state_zeros} of the bad weights have a second moment of exactly 0."
                if facts.state_zeros
                else ""
            )
            return (
                f"eps={eps:g} is 0 in {dtype}, so a weight whose squared gradient underflows is "
                f"divided by 0.{zeros}",
                0.9,
                [
                    _eps(facts, 1e-4, f"use an eps that {dtype} can hold (1e-4)"),
                    Fix(title="keep the parameters in float32 (autocast casts for you)"),
                ],
            )
    if eps == 0 and facts.state_zeros:
        return (
            f"eps=0, and {facts.state_zeros} of the bad weights have a second moment of exactly "
            "0: 0/0.",
            0.9,
            [_eps(facts, 1e-8, "use the default eps")],
        )
    if isinstance(betas, (tuple, list)) and any(
        isinstance(beta, (int, float)) and beta >= 1 for beta in betas
    ):
        return (
            f"betas={tuple(betas)}: a beta of 1 makes the bias correction 1 − betaᵗ zero.",
            0.9,
            [Fix(title="use betas below 1")],
        )
    if isinstance(lr, (int, float)) and (not math.isfinite(lr) or abs(lr) > 1e6):
        return f"The learning rate is {lr:g}.", 0.9, [Fix(title="lower the learning rate")]
    last = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    if last and last[-1] > _HUGE_GRADIENT:
        return (
            f"The gradient norm had reached {last[-1]:.3g}: its square, or its product with the "
            "learning rate, overflows.",
            0.7,
            [Fix(title="lower the learning rate or clip the gradients")],
        )
    if (
        last
        and lr
        and isinstance(lr, (int, float))
        and len(last) > 1
        and last[-1] > 100 * max(last[0], 1e-12)
    ):
        return (
            f"The gradient norm had grown from {last[0]:.3g} to {last[-1]:.3g} at learning rate "
            f"{lr:g}.",
            0.5,
            [Fix(title="lower the learning rate or clip the gradients")],
        )
    return "Its hyperparameters are in the evidence.", 0.2, []
