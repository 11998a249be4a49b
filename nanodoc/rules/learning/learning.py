"""ND607, ND611, ND617, ND618, ND621: models that as a whole do not learn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule
from nanodoc.diagnosis.thresholds import limit
from nanodoc.facts.calls import CLASSIFICATION, ArgumentFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import stuck_at_chance
from nanodoc.rules.base import count
from nanodoc.rules.learning.learning_base import (
    SHORTEST,
    at_call,
    calls_of,
    learning_claim,
    learning_rule,
    loss_call,
)

_PLATEAU = 30  # steps without any progress
_NOTHING = 0.98  # of the loss on one batch alone: less is learning, if slowly
_ENOUGH = 50  # steps that learning a batch by heart may take
_GAIN = 1.1  # times what the loss gains without inputs


# -- ND611, ND607, ND618, ND621 --------------------------------------------------------------------


def _initial_loss(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    loss = loss_call(calls, CLASSIFICATION) if calls is not None else None
    if (
        loss is None
        or calls is None
        or not evidence.losses
        or loss.index not in calls.losses
        or loss.options.get("reduction", "mean") != "mean"
    ):
        return
    target = calls.origin(loss.arguments[1]) if len(loss.arguments) > 1 else None
    # positions, as contrastive losses compare with
    if not isinstance(target, ArgumentFacts) or not (target.leaf or "").startswith("batch"):
        return
    chance = math.log(max(loss.notes.get("classes", 0), 1))
    began = evidence.losses[0]
    if (
        chance <= 0
        or not math.isfinite(began)
        or began < limit(evidence, "initial-loss.times-chance") * chance
    ):
        return
    last = statistics.median(evidence.losses[-5:])
    yield learning_claim(
        rule,
        ("initial-loss",),
        scope=Scope.MODEL,
        title=f"the loss starts at {began:.3g}; guessing among {loss.notes['classes']:.0f} classes "
        f"costs ln {loss.notes['classes']:.0f} = {chance:.3g}",
        explanation="The untrained model is sure of wrong answers: its first outputs are too large, by "
        "the scale of the initial weights or of the inputs."
        + (" It has not come down to chance since." if last >= chance else ""),
        culprit=at_call(loss, evidence),
        severity="warning" if last >= chance and len(evidence.losses) >= _PLATEAU else "info",
        step=0,
        weight=confidence(0.6, 0.4 if last >= chance else 0.1),
        specificity=Specificity.FALLBACK,
        notes=[("loss at step 0", began), ("ln C", chance), ("loss now", last)],
        fix="smaller weights in the last layer, normalised inputs",
    )


def _zero_loss(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses, norms = evidence.losses, evidence.grad_norms
    if (
        len(losses) < SHORTEST
        or any(loss != losses[0] for loss in losses)
        or any(norm != 0 for norm in norms)
    ):
        return
    calls = calls_of(evidence)
    if calls is None or not calls.losses:  # nothing was differentiated
        return
    site = calls.calls[calls.losses[0]]
    single = loss_call(calls, CLASSIFICATION)
    severity = "critical"
    if single is not None and single.notes.get("classes") == 1:
        site, what = single, f"{single.name} over a single class is always 0"
    else:
        # rewards may be rare, and margins may be met
        severity = "warning" if losses[0] == 0 else "critical"
        what = (
            f"the loss is {'exactly 0' if losses[0] == 0 else f'the same {losses[0]:.6g}'} in "
            "every step, and so is every gradient"
        )
    yield learning_claim(
        rule,
        ("constant",),
        severity=severity,
        title=what,
        explanation=f"In {count(len(losses), 'step')} on different batches neither loss nor gradients "
        "changed: there is nothing to learn from.",
        culprit=at_call(site, evidence),
        step=0,
        weight=confidence(0.8, 0.5 if len(losses) > 20 else 0.2),
        stage=Stage.LEARNING,
        position=-1,
        notes=[("loss", losses[0]), ("largest gradient norm", max(norms, default=0.0))],
        fix="for one output use binary_cross_entropy_with_logits"
        if single is not None and single.notes.get("classes") == 1
        else "look at what the loss is made of: a clamp, a margin that is always met, a mask that "
        "keeps nothing",
    )


def _loss_not_decreasing(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    plateau, overfit = stuck_at_chance(evidence), evidence.overfit
    # a hard task, or too few steps
    if (
        plateau is None
        or overfit is None
        or overfit.asked
        or overfit.last < _NOTHING * overfit.first
    ):
        return
    yield learning_claim(
        rule,
        ("stuck",),
        scope=Scope.MODEL,
        title=f"the loss stays at ln {plateau.classes} = {plateau.chance:.3g}: the model does no "
        "better than guessing",
        explanation=f"After {len(evidence.losses)} steps the loss is {plateau.late:.4g}. Given one batch "
        f"alone for {overfit.steps} steps, at ten and a hundred times the learning rate too, "
        f"it came from {overfit.first:.3g} to {overfit.last:.3g} only, so it is not the "
        "data's difficulty.",
        culprit=at_call(plateau.loss, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.6, 0.5 if overfit.last > 0.9 * overfit.first else 0.2),
        specificity=Specificity.FALLBACK,
        notes=[
            ("ln C", plateau.chance),
            ("loss of the last steps", plateau.late),
            ("one batch alone", f"{overfit.first:.3g} → {overfit.last:.3g}"),
        ],
        fix="look at the learning rate, at the path from the inputs to the loss, and at whether "
        "labels belong to their inputs",
    )


def _cannot_overfit(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    overfit = evidence.overfit
    if overfit is None or not overfit.asked:
        return
    calls = calls_of(evidence)
    site = calls.calls[calls.losses[0]] if calls is not None and calls.losses else None
    culprit = at_call(site, evidence) if site is not None else Culprit(kind="op")
    blind = overfit.zeroed_last is not None and overfit.first - overfit.last < _GAIN * (
        overfit.first - overfit.zeroed_last
    )
    notes = [
        ("loss", f"{overfit.first:.4g} → {overfit.last:.4g}"),
        ("at ten times the rate", overfit.faster_last),
        ("with inputs zeroed", overfit.zeroed_last),
        ("steps", overfit.steps),
    ]
    if not overfit.fits and (
        overfit.steps < _ENOUGH
        or (overfit.faster_last is not None and overfit.faster_last < 0.5 * overfit.first)
    ):
        return  # too few steps, or too small ones: the vital signs say how far it came
    if not overfit.fits:
        yield learning_claim(
            rule,
            ("one-batch",),
            scope=Scope.MODEL,
            title=f"one batch alone is not fitted: the loss goes from {overfit.first:.4g} to "
            f"{overfit.last:.4g} in {overfit.steps} steps",
            severity="warning",
            explanation="A model with enough parameters learns a single batch by heart. This one doesn't: "
            "something between inputs, model, loss and optimizer is not connected, or the "
            "loss has a floor that no model gets under (noise that is drawn anew, a game of "
            "two).",
            culprit=culprit,
            step=overfit.steps - 1,
            weight=confidence(
                0.5,
                0.5 if overfit.steps >= 50 else 0.1,
                0.4 if overfit.last > 0.9 * overfit.first else 0.0,
            ),
            notes=notes,
            fix="more steps (--steps), a learning rate ten times larger or smaller; then "
            "check-grad-graph",
        )
    elif blind:
        yield learning_claim(
            rule,
            ("one-batch",),
            scope=Scope.MODEL,
            title=f"the loss falls as far with {', '.join(overfit.zeroed)} zeroed: the inputs are "
            "not used",
            explanation=f"It ends at {overfit.last:.4g} with the inputs and at {overfit.zeroed_last:.4g} "
            "without. The model learns the targets' distribution only.",
            culprit=culprit,
            step=overfit.steps - 1,
            weight=confidence(
                0.6,
                0.5
                if overfit.zeroed_last is not None and overfit.zeroed_last <= overfit.last
                else 0.1,
            ),
            notes=notes,
            severity="warning",
            fix="follow the inputs: a slice, a mask or a normalisation may drop them; nanodoc "
            "check-grad-graph shows the modules they pass",
        )


def _collapsed_output(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or len(evidence.losses) < SHORTEST:
        return
    out = inspection.output
    if (
        out.batch_size < 4
        or not out.inputs_differ
        or out.spread > limit(evidence, "collapsed-output.spread")
    ):
        return
    yield learning_claim(
        rule,
        ("collapsed",),
        scope=Scope.MODEL,
        title=f"the model returns the same output for all {out.batch_size} samples of a batch",
        explanation=f"Their inputs differ; the outputs differ by {out.spread:.1g} of their size. Whatever "
        "tells the samples apart is lost on the way.",
        culprit=Culprit(kind="module", module=""),
        severity="critical" if out.spread == 0 else "warning",
        step=inspection.step,
        weight=confidence(0.8, 0.4 if out.spread == 0 else 0.1),
        specificity=Specificity.FALLBACK,
        notes=[("difference between samples", out.spread), ("batch size", out.batch_size)],
        fix="look for dead or saturated layers, for a softmax or mean over the batch, and at the "
        "scale of the inputs",
    )


RULES = (
    learning_rule(
        "ND607",
        "loss-not-decreasing",
        "warning",
        "the loss stays where guessing would be",
        _loss_not_decreasing,
    ),
    learning_rule(
        "ND611",
        "initial-loss",
        "warning",
        "the first loss is far above that of guessing",
        _initial_loss,
    ),
    learning_rule(
        "ND617",
        "cannot-overfit-one-batch",
        "critical",
        "a single batch is not learnt by heart",
        _cannot_overfit,
    ),
    learning_rule(
        "ND618",
        "collapsed-output",
        "critical",
        "the same output whatever the input",
        _collapsed_output,
    ),
    learning_rule(
        "ND621", "zero-loss", "critical", "a loss that is constant and has no gradient", _zero_loss
    ),
)
