"""ND602–ND605, ND607, ND610, ND611, ND618, ND621, ND625, ND629: runs in which something does not learn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

from nanodoc.call_evidence import CallFacts, StepCalls, UnitFacts
from nanodoc.evidence import Evidence, SourceSpan
from nanodoc.loop_evidence import ParameterStats
from nanodoc.plateau import stuck_at_chance
from nanodoc.report.model import Culprit, Finding, Fix
from nanodoc.rules.base import Claim, Rule, confidence, count, location_key
from nanodoc.rules.learning_docs import DOCS

_LATE = 9_500
_DEAD = 0.5  # RULES, ND603
_FEWEST_UNITS = 4
_FEWEST_VALUES = 64  # per unit: a unit that is zero on a handful of samples is not dead
_SATURATED = 0.5  # RULES, ND604
_VANISHED = 1e-3  # RULES, ND602: gradient norm of the first layers over that of the last
_SMALL = 1e-7  # RULES, ND602: mean |g|
_SHORTEST = 10
_PLATEAU = 30  # steps without any progress
_NOTHING = 0.9  # of the loss on one batch alone: less is learning, if slowly
_GAIN = 1.1  # times what the loss gains without inputs
_COLLAPSED = 1e-6
_UNREACHABLE = 0.1  # share of the targets
_CLASSIFIES = ("cross_entropy", "nll_loss")


def _calls(evidence: Evidence) -> StepCalls | None:
    return evidence.inspection.calls if evidence.inspection is not None else None


def _loss_call(calls: StepCalls, names: tuple[str, ...]) -> CallFacts | None:
    reaching = calls.reaching_the_loss()
    return next((one for one in calls.calls if one.name in names and one.index in reaching), None)


def _claim(
    rule: Rule, root: tuple[object, ...], *, title: str, explanation: str, culprit: Culprit, weight: float, fix: str, step: int | None = None,
    phase: str = "forward", severity: str | None = None, notes: Iterable[tuple[str, object]] = (), fit: int = 20, order: int = _LATE, symptom: int = 0,
) -> Claim:  # fmt: skip
    return Claim(
        root=root,
        fit=fit,
        order=order,
        symptom=symptom,
        finding=Finding(
            code=rule.code, name=rule.name, severity=severity or rule.severity, confidence=weight, title=title, explanation=explanation,
            culprit=culprit, phase=phase, step=step, evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )  # fmt: skip


def _at(call: CallFacts, evidence: Evidence) -> Culprit:
    site: SourceSpan | None = call.site or (evidence.criterion_site if not call.module else None)
    return Culprit(kind="op", op=call.name, module=call.module, module_type=call.module_type, location=site)


# -- ND602 ---------------------------------------------------------------------------------------------------------------


def _layers(evidence: Evidence) -> list[ParameterStats]:
    """Weights of layers, in the model's order; embeddings get gradients for some rows only."""
    stats = evidence.stats
    if stats is None:
        return []
    weights = [p for p in stats.parameters if p.trainable and len(p.shape) >= 2 and p.grad_norm is not None]
    return [p for p in weights if "Embedding" not in p.module_type and math.prod(p.shape[1:]) > 1]


def _vanishing_gradients(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    layers = _layers(evidence)
    if len(layers) < 4 or len(evidence.losses) < _SHORTEST:
        return
    norms = [p.grad_norm or 0.0 for p in layers]
    quarter = max(len(norms) // 4, 1)
    first, last = statistics.median(norms[:quarter]), statistics.median(norms[-quarter:])
    if last == 0 or first == 0 or first / last >= _VANISHED or _falls(norms) < 0.8:
        return
    front = layers[0]
    mean = (front.grad_norm or 0.0) / math.sqrt(math.prod(front.shape))
    module = front.name.rpartition(".")[0]
    yield _claim(
        rule, ("gradients", "vanish"), symptom=1,
        title=f"gradients vanish on their way to the first layers: {first:.2g} there, {last:.2g} in the last",
        explanation=f"From layer to layer the gradient norm falls, to {first / last:.1g} of its size at the input side: the first layers stay as they were "
        "initialised.",
        culprit=Culprit(kind="module", module=module, module_type=front.module_type, parameter=front.name),
        weight=confidence(0.7, 0.5 if mean < _SMALL else 0.2, 0.3 if first / last < 1e-5 else 0.0),
        phase="backward", step=0,
        notes=[("gradient norms, first to last", " → ".join(f"{norm:.1e}" for norm in norms[:: max(len(norms) // 6, 1)])), ("mean |gradient| of the first", mean)],
        fix="ReLU-like activations, residual connections or normalisation between the layers; initialise for the activation used",
    )  # fmt: skip


def _falls(norms: list[float]) -> float:
    """Share of the pairs of layers in which the one nearer the input has the smaller gradient."""
    pairs = [(a, b) for i, a in enumerate(norms) for b in norms[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)


# -- ND603, ND604, ND629 -------------------------------------------------------------------------------------------------


def _dead_units(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < _SHORTEST:
        return
    for one in inspection.units:
        if not one.saturated and one.units >= 1 and one.values >= _FEWEST_VALUES * one.units and one.call.name not in ("sigmoid", "tanh"):
            claim = _dead(rule, evidence, one)
            if claim is not None:
                yield claim
                return


def _dead(rule: Rule, evidence: Evidence, one: UnitFacts) -> Claim | None:
    call, inspection = one.call, evidence.inspection
    assert inspection is not None
    whole = one.dead == one.units
    if whole:
        title = (
            f"{call.name} returns 0 for every sample: all {one.units} units are dead"
            if one.units > 1
            else f"{call.name} returns 0 for every sample"
        )
        why = "Its input is negative everywhere, where its derivative is 0: no gradient comes through it any more, and nothing can change that."
    elif one.output and one.dead and _feeds_a_classifier(inspection.calls, call):
        title = f"{call.name} on the outputs: {one.dead} of {one.units} classes are 0 for every sample"
        why = "A loss over logits needs them to go below zero; where this one clips, the class gets no gradient."
    elif one.output or one.dead <= _DEAD * one.units or one.units < _FEWEST_UNITS or inspection.batches < 2:
        return None
    else:
        title = f"{one.dead} of {one.units} units are dead after {call.name}"
        why = f"They were 0 for every sample of {count(inspection.batches, 'batch').replace('batchs', 'batches')}: they get no gradient and add nothing."
    serious = whole or one.output
    return _claim(
        rule, location_key(call.site) or ("units", call.module), symptom=0 if one.output else 1,
        title=title, explanation=why, culprit=_at(call, evidence), severity="critical" if serious else "warning", step=inspection.step,
        weight=confidence(0.8 if serious else 0.6, 0.4 if inspection.batches > 2 else 0.1, 0.4 if whole else 0.0), fit=30 if serious else 20,
        notes=[("dead units", f"{one.dead} of {one.units}"), ("values looked at", one.values), ("batches", inspection.batches)],
        fix="no activation on the output" if one.output else "a lower learning rate, LeakyReLU or GELU, and an initialisation meant for ReLU (kaiming)",
    )  # fmt: skip


def _feeds_a_classifier(calls: StepCalls, call: CallFacts) -> bool:
    loss = _loss_call(calls, (*_CLASSIFIES, "binary_cross_entropy_with_logits"))
    if loss is None or not loss.arguments:
        return False
    made = calls.origin(loss.arguments[0])
    return isinstance(made, CallFacts) and made.index == call.index


def _saturated_activations(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < _SHORTEST:
        return
    calls = inspection.calls
    gates = {one.made_by for call in calls.calls if call.name == "mul" for one in call.arguments}
    for one in inspection.units:
        if one.saturated <= _SATURATED or one.output or one.call.index in gates or one.values < _FEWEST_VALUES * _FEWEST_UNITS:
            continue
        yield _claim(
            rule, location_key(one.call.site) or ("units", one.call.module), symptom=1,
            title=f"{one.saturated:.0%} of {one.call.name}'s outputs lie in its flat part",
            explanation="There its derivative is below 0.01: what comes back to the layers before it is a hundredth of the gradient, and less.",
            culprit=_at(one.call, evidence), severity=rule.severity, step=inspection.step,
            weight=confidence(0.6, 0.5 if one.saturated > 0.9 else 0.2, 0.3 if inspection.batches > 1 else 0.0),
            notes=[("share in the flat part", round(one.saturated, 3)), ("values looked at", one.values)],
            fix="normalise the inputs, smaller initial weights, or normalisation before the activation",
        )  # fmt: skip
        return


def _unreachable_target(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    calls = inspection.calls
    loss = _loss_call(calls, ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
    made = calls.origin(loss.arguments[0]) if loss is not None and len(loss.arguments) > 1 else None
    if loss is None or not isinstance(made, CallFacts) or not loss.arguments[0].requires_grad or loss.arguments[1].requires_grad:
        return
    low, high = {"relu": (0.0, math.inf), "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "softmax": (0.0, 1.0)}.get(
        made.name, (-math.inf, math.inf)
    )
    label = {"relu": "below_0", "sigmoid": "outside_01", "softmax": "outside_01", "tanh": "outside_11"}.get(made.name)
    share = loss.notes.get(f"target_{label}", 0.0) if label else 0.0
    if share < _UNREACHABLE:
        return
    yield _claim(
        rule, location_key(made.site) or ("units", made.module),
        title=f"{made.name} on the output cannot reach {share:.0%} of the targets",
        explanation=f"{made.name} returns values in [{low:g}, {high:g}]; the targets go from {loss.notes.get('target_min', math.nan):.3g} to "
        f"{loss.notes.get('target_max', math.nan):.3g}. The model is pushed into the flat part of its last activation.",
        culprit=_at(made, evidence), step=0, weight=confidence(0.8, 0.5 if share > 0.3 else 0.1), fit=25,
        notes=[("targets out of reach", f"{share:.0%}")],
        fix="no activation on the output of a regression, or targets scaled to its range",
    )  # fmt: skip


# -- ND605, ND610 --------------------------------------------------------------------------------------------------------


def _update_ratio(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or len(evidence.losses) < _SHORTEST or not evidence.optimizer_sites or evidence.trip is not None:
        return
    if not stats.rates or any(not rates or min(rates) == 0 for rates in stats.rates):  # a warm-up, or a group that is frozen by its rate
        return
    missing = {p.name for p in evidence.ownership.missing} if evidence.ownership is not None else set()
    still = [p for p in stats.parameters if p.trainable and p.moved == 0.0 and _is_felt(p) and p.name not in missing]
    moving = [p for p in stats.parameters if p.moved]
    if not still or any(one.kind in ("discarded", "never-stepped") for one in (evidence.loop.misuses if evidence.loop else ())):
        return
    first = still[0]
    yield _claim(
        rule, ("updates", "none"), symptom=1,
        title=f"{count(len(still), 'parameter')} {'has' if len(still) == 1 else 'have'} not moved by a bit in {len(evidence.losses)} steps: {_names(still)}",
        explanation=f"They get gradients (norm {first.grad_norm:.2g} for {first.name}), an optimizer holds them, and the learning rate is not zero: what the updates "
        "add is too small to change the values in their dtype, or something puts the values back.",
        culprit=Culprit(kind="parameter", parameter=first.name, module=first.name.rpartition(".")[0], module_type=first.module_type, location=next(
            (one for one in evidence.optimizer_sites if one is not None), None)),
        phase="optimizer", step=len(evidence.losses) - 1, weight=confidence(0.7, 0.4 if len(still) > 2 or not moving else 0.1),
        notes=[("not moved", _names(still)), ("learning rate", f"{max(stats.rates[-1]):.3g}")],
        fix="keep the weights in float32 (autocast instead of half-precision parameters), or raise the learning rate",
    )  # fmt: skip


def _is_felt(parameter: ParameterStats) -> bool:
    """A gradient that is more than rounding: that of a bias before BatchNorm is nothing else."""
    return len(parameter.shape) >= 2 and (parameter.grad_norm or 0.0) / math.sqrt(math.prod(parameter.shape)) > _SMALL


def _names(parameters: list[ParameterStats]) -> str:
    shown = ", ".join(p.name for p in parameters[:4])
    return shown + (f" and {len(parameters) - 4} more" if len(parameters) > 4 else "")


def _poor_initialisation(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or len(evidence.losses) < _SHORTEST:
        return
    same = [p for p in stats.parameters if p.trainable and p.identical_rows and p.moved and p.grad_norm]
    if not same:
        return
    first = same[0]
    module = first.name.rpartition(".")[0]
    yield _claim(
        rule, ("init", first.name),
        title=f"all {first.shape[0]} units of {first.name} have the same weights",
        explanation=f"They began alike, so they get the same gradient and stay alike: after {count(len(evidence.losses), 'step')} the rows still differ by rounding only. "
        "The layer computes one number, many times.",
        culprit=Culprit(kind="parameter", parameter=first.name, module=module, module_type=first.module_type),
        phase="setup", step=0, weight=confidence(0.85, 0.5), order=_LATE - 500, fit=20,
        notes=[("also", _names(same[1:]) if len(same) > 1 else None)],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_); constants are for biases",
    )  # fmt: skip


# -- ND611, ND607, ND618, ND621 ------------------------------------------------------------------------------------------


def _initial_loss(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = _calls(evidence)
    loss = _loss_call(calls, _CLASSIFIES) if calls is not None else None
    if (
        loss is None
        or calls is None
        or not evidence.losses
        or loss.index not in calls.losses
        or loss.options.get("reduction", "mean") != "mean"
    ):
        return
    chance = math.log(max(loss.notes.get("classes", 0), 1))
    began = evidence.losses[0]
    if chance <= 0 or not math.isfinite(began) or began - chance < chance:
        return
    last = statistics.median(evidence.losses[-5:])
    yield _claim(
        rule, ("initial-loss",), symptom=2,
        title=f"the loss starts at {began:.3g}; guessing among {loss.notes['classes']:.0f} classes costs ln {loss.notes['classes']:.0f} = {chance:.3g}",
        explanation="The untrained model is sure of wrong answers: its first outputs are too large, by the scale of the initial weights or of the inputs."
        + (" It has not come down to chance since." if last >= chance else ""),
        culprit=_at(loss, evidence), severity="warning" if last >= chance and len(evidence.losses) >= _PLATEAU else "info", step=0,
        weight=confidence(0.6, 0.4 if last >= chance else 0.1), fit=5,
        notes=[("loss at step 0", began), ("ln C", chance), ("loss now", last)],
        fix="smaller weights in the last layer, normalised inputs",
    )  # fmt: skip


def _zero_loss(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses, norms = evidence.losses, evidence.grad_norms
    if len(losses) < _SHORTEST or any(loss != losses[0] for loss in losses) or any(norm != 0 for norm in norms):
        return
    calls = _calls(evidence)
    site = calls.calls[calls.losses[0]] if calls is not None and calls.losses else None
    single = _loss_call(calls, _CLASSIFIES) if calls is not None else None
    if single is not None and single.notes.get("classes") == 1:
        site, what = single, f"{single.name} over a single class is always 0"
    else:
        what = f"the loss is {'exactly 0' if losses[0] == 0 else f'the same {losses[0]:.6g}'} in every step, and so is every gradient"
    yield _claim(
        rule, ("constant",),
        title=what,
        explanation=f"In {count(len(losses), 'step')} on different batches neither loss nor gradients changed: there is nothing to learn from.",
        culprit=_at(site, evidence) if site is not None else Culprit(kind="op"), step=0, weight=confidence(0.8, 0.5 if len(losses) > 20 else 0.2), order=_LATE - 400,
        notes=[("loss", losses[0]), ("largest gradient norm", max(norms, default=0.0))],
        fix="for one output use binary_cross_entropy_with_logits" if single is not None and single.notes.get("classes") == 1
        else "look at what the loss is made of: a clamp, a margin that is always met, a mask that keeps nothing",
    )  # fmt: skip


def _loss_not_decreasing(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    plateau, overfit = stuck_at_chance(evidence), evidence.overfit
    if plateau is None or overfit is None or overfit.asked or overfit.last < _NOTHING * overfit.first:  # a hard task, or too few steps
        return
    yield _claim(
        rule, ("stuck",), symptom=2,
        title=f"the loss stays at ln {plateau.classes} = {plateau.chance:.3g}: the model does no better than guessing",
        explanation=f"After {len(evidence.losses)} steps the loss is {plateau.late:.4g}. Given one batch alone for {overfit.steps} steps, at ten times the learning rate too, it came from "
        f"{overfit.first:.3g} to {overfit.last:.3g} only, so it is not the data's difficulty.",
        culprit=_at(plateau.loss, evidence), step=len(evidence.losses) - 1, weight=confidence(0.6, 0.5 if overfit.last > 0.9 * overfit.first else 0.2), fit=1,
        notes=[("ln C", plateau.chance), ("loss of the last steps", plateau.late), ("one batch alone", f"{overfit.first:.3g} → {overfit.last:.3g}")],
        fix="look at the learning rate, at the path from the inputs to the loss, and at whether labels belong to their inputs",
    )  # fmt: skip


def _cannot_overfit(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    overfit = evidence.overfit
    if overfit is None or not overfit.asked:
        return
    calls = _calls(evidence)
    site = calls.calls[calls.losses[0]] if calls is not None and calls.losses else None
    culprit = _at(site, evidence) if site is not None else Culprit(kind="op")
    blind = overfit.zeroed_last is not None and overfit.first - overfit.last < _GAIN * (overfit.first - overfit.zeroed_last)
    notes = [("loss", f"{overfit.first:.4g} → {overfit.last:.4g}"), ("with inputs zeroed", overfit.zeroed_last), ("steps", overfit.steps)]
    if not overfit.fits:
        yield _claim(
            rule, ("one-batch",), symptom=2,
            title=f"one batch alone is not fitted: the loss goes from {overfit.first:.4g} to {overfit.last:.4g} in {overfit.steps} steps",
            explanation="A model with enough parameters learns a single batch by heart. This one doesn't: something between inputs, model, loss and "
            "optimizer is not connected, or the learning rate is far off.",
            culprit=culprit, step=overfit.steps - 1, weight=confidence(0.5, 0.5 if overfit.steps >= 50 else 0.1, 0.4 if overfit.last > 0.9 * overfit.first else 0.0),
            notes=notes, fix="more steps (--steps), a learning rate ten times larger or smaller; then check-grad-graph",
        )  # fmt: skip
    elif blind:
        yield _claim(
            rule, ("one-batch",), symptom=2,
            title=f"the loss falls as far with {', '.join(overfit.zeroed)} zeroed: the inputs are not used",
            explanation=f"It ends at {overfit.last:.4g} with the inputs and at {overfit.zeroed_last:.4g} without. The model learns the targets' distribution only.",
            culprit=culprit, step=overfit.steps - 1, weight=confidence(0.7, 0.3), notes=notes, severity="warning",
            fix="follow the inputs: a slice, a mask or a normalisation may drop them; nanodoc check-grad-graph shows the modules they pass",
        )  # fmt: skip


def _collapsed_output(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or len(evidence.losses) < _SHORTEST:
        return
    out = inspection.output
    if out.batch_size < 4 or not out.inputs_differ or out.spread > _COLLAPSED:
        return
    yield _claim(
        rule, ("collapsed",), symptom=2,
        title=f"the model returns the same output for all {out.batch_size} samples of a batch",
        explanation=f"Their inputs differ; the outputs differ by {out.spread:.1g} of their size. Whatever tells the samples apart is lost on the way.",
        culprit=Culprit(kind="module", module=""), severity="critical" if out.spread == 0 else "warning", step=inspection.step,
        weight=confidence(0.8, 0.4 if out.spread == 0 else 0.1), fit=1,
        notes=[("difference between samples", out.spread), ("batch size", out.batch_size)],
        fix="look for dead or saturated layers, for a softmax or mean over the batch, and at the scale of the inputs",
    )  # fmt: skip


def _frozen_statistics(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    still = [one for one in inspection.modes if one.momentum == 0 and one.training]
    if still:
        first = still[0]
        yield _claim(
            rule, location_key(first.made_at) or ("statistics", first.module),
            title=f"{first.module_type} with momentum 0 never updates its running statistics" + (f" ({len(still)} layers)" if len(still) > 1 else ""),
            explanation="In training it normalises by the batch; in eval mode it will normalise by running statistics that are still mean 0 and variance 1. "
            "torch's momentum is the share of the new value, not of the old.",
            culprit=Culprit(kind="module", module=first.module, module_type=first.module_type, location=first.made_at),
            weight=confidence(0.9, 0.4), step=0, notes=[("momentum", 0.0)],
            fix="momentum=0.1 (torch's 0.1 is what other libraries call 0.9)",
        )  # fmt: skip


def _rule(code: str, name: str, severity: str, summary: str, check: Callable[[Rule, Evidence], Iterable[Claim]]) -> Rule:
    return Rule(code=code, name=name, severity=severity, summary=summary, check=check, doc=DOCS[code])


RULES = (
    _rule("ND602", "vanishing-gradients", "warning", "gradients shrink to nothing on their way to the first layers", _vanishing_gradients),
    _rule("ND603", "dead-units", "warning", "units that are zero for every sample", _dead_units),
    _rule("ND604", "saturated-activations", "warning", "sigmoid or tanh in its flat part", _saturated_activations),
    _rule("ND605", "update-ratio", "warning", "updates too small to change a weight", _update_ratio),
    _rule("ND607", "loss-not-decreasing", "warning", "the loss stays where guessing would be", _loss_not_decreasing),
    _rule("ND610", "poor-initialisation", "critical", "all units of a layer have the same weights", _poor_initialisation),
    _rule("ND611", "initial-loss", "warning", "the first loss is far above that of guessing", _initial_loss),
    _rule("ND617", "cannot-overfit-one-batch", "critical", "a single batch is not learnt by heart", _cannot_overfit),
    _rule("ND618", "collapsed-output", "critical", "the same output whatever the input", _collapsed_output),
    _rule("ND621", "zero-loss", "critical", "a loss that is constant and has no gradient", _zero_loss),
    _rule("ND625", "frozen-statistics", "warning", "batch norm statistics that never move", _frozen_statistics),
    _rule("ND629", "unreachable-target", "critical", "an output activation that cannot produce the targets", _unreachable_target),
)
