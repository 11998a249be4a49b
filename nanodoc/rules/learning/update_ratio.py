"""## What it checks
Weights that stay as they are although they get gradients, an optimizer holds them and no learning
rate is zero.

For weights in bfloat16 or float16, nanodoc makes the last step once more, and beside it the same
step on float32 copies of weights, gradients and optimizer state. It warns where most elements stay
bitwise the same, float32 would move them, and over the run they would have moved visibly. Weights
that stochastic rounding or a compensated sum moves are not meant.

For weights of any type, it warns where all values are bitwise the same as at step 0. It is
critical where an optimizer's steps change nothing any more for half of the run or longer.

It also warns where an optimizer that scales its gradients moves its weights together by less than
0.00005 of their size per step. Loaded weights and a rate that rises are left alone. So are
trainings whose loss must fall: there larger rates are tried on the same steps (ND630). `--stats`
prints the update ratio |Δw|/|w| of each parameter; healthy values lie between 1e-5 and 1e-1.

## Why it matters
bfloat16 has 8 significant bits: a weight of 1.0 changes by 0.008 or not at all. Smaller updates are
rounded away, step after step, and the loss stops falling early.

## Example
    model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

## Fix
Keep weights in float32 under autocast, or use an optimizer with float32 master weights or
stochastic rounding.

## See also
ND506 parameter-not-in-optimizer, ND609 learning-rate-range
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.course import is_weighed
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import DISCARDED, NEVER_STEPPED, ParameterStats, RoundingFacts
from nanodoc.facts.rates import LONG_ENOUGH, has_goal
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    calls_of,
    learning_claim,
)
from nanodoc.rules.learning.units import shown_names

_FELT = 1e-7  # mean |g|
_COMPENSATED = 0.25  # of what stochastic rounding moves
_RATE = 0.1  # of the highest: what follows is the end of a schedule
_DRIFT = 0.01  # of the weight, over the run: less would not be missed
_ROOT = ("updates", "none")


@rule(
    "ND605",
    "update-ratio",
    "warning",
    "updates too small to change a weight",
    needs=("stats",),
    thresholds={
        "kept": Threshold(
            0.5, "most elements; float32 weights measure 0.000, bfloat16's 0.3 to 0.9"
        )
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if (
        stats is None
        or len(evidence.losses) < SHORTEST
        or not evidence.optimizer_sites
        or evidence.trip is not None
    ):
        return
    steps = evidence.loop.optimizer_steps if evidence.loop is not None else None
    if steps is not None and steps < SHORTEST:
        return
    kept = _kept(evidence)
    if (
        stats.rounding is not None
        and kept is not None
        and kept >= check.limit(evidence, "kept")
        and _is_lost(stats.rounding, steps or len(evidence.losses))
    ):
        yield _rounded(rule, evidence, stats.rounding, kept)
        return
    yield from _stopped(rule, evidence)
    yield from _creeping(rule, evidence)
    # a warm-up, or a group that is frozen by its rate
    if not stats.rates or any(not rates or min(rates) == 0 for rates in stats.rates):
        return
    yield from _unmoved(rule, evidence)


def _stopped(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Steps that change nothing any more."""
    stats = evidence.stats
    assert stats is not None
    for seen in stats.stopped:
        one, more = seen.parameters[0], len(seen.parameters) > 1
        claim = learning_claim(
            rule,
            _ROOT,
            standing=Standing(specificity=Specificity.EXACT),
            title=f"the optimizer's steps change nothing from step {seen.since} on, at the latest",
            explanation=f"{count(len(seen.parameters), 'parameter')} "
            f"{'have' if more else 'has'} a gradient ({one}: norm {seen.grad_norm:.2g}), and the "
            f"learning rate is {seen.rate:.3g} or more. Yet none of the optimizer's parameters "
            f"changes between steps {seen.since} and {seen.until}: the steps do not reach the "
            "weights, or something puts the old values back.",
            culprit=Culprit(
                kind="optimizer", parameter=one, location=_made_at(evidence, seen.optimizer)
            ),
            phase="optimizer",
            step=seen.since,
            # the longer nothing changes, the less may it be meant
            weight=confidence(0.6, 0.8 * (seen.until - seen.since) / seen.until),
            notes=[
                ("unchanged since", seen.since),
                ("gradient norm", f"{seen.grad_norm:.3g}"),
                ("learning rate", f"{seen.rate:.3g}"),
            ],
            fix="look for what leaves out the step, or writes old values over its result, from "
            "there on",
        )
        yield replace(claim, finding=replace(claim.finding, severity="critical"))


def _made_at(evidence: Evidence, optimizer: int) -> SourceSpan | None:
    sites = evidence.optimizer_sites
    return sites[optimizer] if optimizer < len(sites) else None


def _creeping(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Weights that hardly move, where no run of the same steps can tell whether that is too slow:
    the loss of a policy, or those of several optimizers, need not fall."""
    stats = evidence.stats
    assert stats is not None
    calls = calls_of(evidence)
    several = len(evidence.optimizer_sites) > 1
    if calls is None or has_goal(evidence) or not (several or is_weighed(calls)):
        return
    for seen in stats.creeping:
        # else the gradients may be small, or the run be the beginning of a longer one
        if not seen.adaptive or seen.steps < LONG_ENOUGH:
            continue
        yield learning_claim(
            rule,
            _ROOT,
            standing=Standing(scope=Scope.LAYERS),
            title=f"the learning rate of {seen.rate:.3g} is too low: the weights moved "
            f"by {seen.moved:.2g} of their size in {seen.steps} steps",
            explanation="This optimizer divides each gradient by "
            "its usual size, so the learning rate alone says how far a step goes. None of its "
            f"weights was loaded. At this pace, {seen.steps / seen.moved:,.0f} steps would move "
            "them by their own size.",
            culprit=Culprit(
                kind="optimizer",
                parameter=seen.parameter,
                location=_made_at(evidence, seen.optimizer),
            ),
            phase="optimizer",
            step=len(evidence.losses) - 1,
            weight=confidence(0.5, 1 - 10 * seen.moved),
            notes=[
                ("learning rate", f"{seen.rate:.3g}"),
                ("moved", f"{seen.moved:.2g} of their size"),
                ("farthest for its size", seen.parameter),
            ],
            fix="raise the learning rate",
        )


def _kept(evidence: Evidence) -> float | None:
    """The share of the elements that stayed, at the end of the run but for the end of a schedule.
    The last step's own, where no other was sampled."""
    stats = evidence.stats
    if stats is None or stats.rounding is None:
        return None
    rates = [max(step, default=0.0) for step in stats.rates]
    highest = max(rates, default=0.0)
    felt = [
        share for step, share in stats.kept if step >= len(rates) or rates[step] >= _RATE * highest
    ]
    if felt:
        return statistics.median(felt[-max(1, len(felt) // 3) :])
    return stats.rounding.kept


def _is_lost(seen: RoundingFacts, steps: int) -> bool:
    """Rounding alone keeps the weights where they are, and float32 would have moved them."""
    plain = seen.compensated < _COMPENSATED and seen.moved > 0.5
    return plain and seen.ratio < 1 and seen.drift * steps > _DRIFT


def _rounded(rule: Rule, evidence: Evidence, seen: RoundingFacts, kept: float) -> Claim:
    stats = evidence.stats
    first = stats.kept[0] if stats is not None and stats.kept else None
    optimizer = next((site for site in evidence.optimizer_sites if site is not None), None)
    return learning_claim(
        rule,
        _ROOT,
        standing=Standing(stage=Stage.PRECISION, specificity=Specificity.EXACT),
        title=f"{kept:.0%} of the {seen.dtype} weights with a gradient no longer move: their "
        "updates are rounded away",
        explanation=f"In {seen.dtype}, the optimizer's step leaves them bitwise the same: the "
        f"median update is {seen.ratio:.2g} of the distance to the next {seen.dtype} number, and "
        "half of it is needed. The same step on float32 copies moves "
        f"{seen.moved:.0%} of them.",
        culprit=Culprit(
            kind="parameter",
            parameter=seen.parameter,
            module=seen.parameter.rpartition(".")[0],
            location=seen.made_at or optimizer,
        ),
        phase="optimizer",
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, 0.4, 0.3),
        notes=[
            ("do not move at the end", f"{kept:.3f}"),
            (f"in step {first[0]}", f"{first[1]:.3f}") if first is not None else ("", None),
            ("median update / unit in the last place", f"{seen.ratio:.2g}"),
            ("moved in float32", f"{seen.moved:.3f}"),
            ("most in", seen.parameter),
        ],
        fix="keep the weights in float32 and compute under torch.autocast, or use an optimizer "
        "with float32 master weights",
    )


def _unmoved(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """Whole parameters whose values are bitwise those of step 0."""
    stats, loop = evidence.stats, evidence.loop
    assert stats is not None
    missing = (
        {p.name for p in evidence.ownership.missing} if evidence.ownership is not None else set()
    )
    still = [
        p
        for p in stats.parameters
        if p.trainable and p.moved == 0.0 and _is_felt(p) and p.name not in missing
    ]
    moving = [p for p in stats.parameters if p.moved]
    if not still or (loop and (loop.misuse(DISCARDED) or loop.misuse(NEVER_STEPPED))):
        return
    first = still[0]
    yield learning_claim(
        rule,
        _ROOT,
        standing=Standing(scope=Scope.LAYERS),
        title=f"{count(len(still), 'parameter')} {'has' if len(still) == 1 else 'have'} not "
        f"changed by a single bit in {len(evidence.losses)} steps: {shown_names(still)}",
        explanation=f"They get gradients (norm {first.grad_norm:.2g} for {first.name}), an "
        "optimizer holds them, and the learning rate is not zero: the updates are too small "
        "to change the values in their dtype, or something resets the values.",
        culprit=Culprit(
            kind="parameter",
            parameter=first.name,
            module=first.name.rpartition(".")[0],
            module_type=first.module_type,
            location=next((site for site in evidence.optimizer_sites if site is not None), None),
        ),
        phase="optimizer",
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, 0.4 if len(still) > 2 or not moving else 0.1),
        notes=[
            ("not changed", shown_names(still)),
            ("learning rate", f"{max(stats.rates[-1]):.3g}"),
        ],
        fix="keep the weights in float32 (autocast instead of half-precision parameters), or "
        "raise the learning rate",
    )


def _is_felt(parameter: ParameterStats) -> bool:
    """A gradient that is more than rounding: that of a bias before BatchNorm is nothing else."""
    return (
        len(parameter.shape) >= 2
        and (parameter.grad_norm or 0.0) / math.sqrt(math.prod(parameter.shape)) > _FELT
    )
