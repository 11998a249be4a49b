"""ND602–ND605, ND610, ND625, ND629: layers, units and parameters that do not learn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule
from nanodoc.diagnosis.thresholds import limit
from nanodoc.facts.calls import CLASSIFICATION, REGRESSION, CallFacts, StepCalls, UnitFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import DISCARDED, NEVER_STEPPED, ParameterStats
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.rules.base import count, location_key
from nanodoc.rules.learning.learning_base import (
    SHORTEST,
    at_call,
    calls_of,
    learning_claim,
    learning_rule,
    loss_call,
)

_OVER_LOGITS = (*CLASSIFICATION, "binary_cross_entropy_with_logits")
# What an activation returns, and the note of the share of targets outside of that.
_RANGES = {
    "relu": (0.0, math.inf, "target_below_0"),
    "sigmoid": (0.0, 1.0, "target_outside_01"),
    "softmax": (0.0, 1.0, "target_outside_01"),
    "tanh": (-1.0, 1.0, "target_outside_11"),
}
_FEWEST_UNITS = 4
_FEWEST_VALUES = 64  # per unit: a unit that is zero on a handful of samples is not dead
_DEEP = 6  # layers
_FELT = 1e-7  # mean |g|
_PARTS = ("chunk", "split", "unbind", "sub", "rsub")  # 1 − z is a gate as z is


# -- ND602 -----------------------------------------------------------------------------------------


def _layers(evidence: Evidence) -> list[ParameterStats]:
    """Weights of layers, in the model's order; embeddings get gradients for some rows only."""
    stats = evidence.stats
    if stats is None:
        return []
    weights = [
        p for p in stats.parameters if p.trainable and len(p.shape) >= 2 and p.grad_norm is not None
    ]
    return [p for p in weights if "Embedding" not in p.module_type and math.prod(p.shape[1:]) > 1]


def _vanishing_gradients(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    layers = _layers(evidence)
    # nets of their own, with a loss and an optimizer each, stand in no row
    if len(layers) < _DEEP or len(evidence.losses) < SHORTEST or len(evidence.optimizer_sites) > 1:
        return
    norms = [p.grad_norm or 0.0 for p in layers]
    quarter = max(len(norms) // 4, 1)
    first, last = statistics.median(norms[:quarter]), statistics.median(norms[-quarter:])
    if (
        last == 0
        or first == 0
        or first / last >= limit(evidence, "vanishing-gradients.ratio")
        or _falls(norms) < 0.8
    ):
        yield from _nearly_zero(rule, evidence, layers)
        return
    front = layers[0]
    mean = (front.grad_norm or 0.0) / math.sqrt(math.prod(front.shape))
    yield learning_claim(
        rule,
        ("gradients", "vanish"),
        scope=Scope.LAYERS,
        title=f"gradients vanish on their way to the first layers: {first:.2g} there, {last:.2g} in "
        "the last",
        explanation=f"From layer to layer the gradient norm falls, to {first / last:.1g} of its size at "
        "the input side: the first layers stay as they were initialised.",
        culprit=_front(evidence, front),
        weight=confidence(
            0.7,
            0.5 if mean < limit(evidence, "vanishing-gradients.mean") else 0.2,
            0.3 if first / last < 1e-5 else 0.0,
        ),
        phase="backward",
        step=0,
        notes=[
            (
                "gradient norms, first to last",
                " → ".join(f"{norm:.1e}" for norm in norms[:: max(len(norms) // 6, 1)]),
            ),
            ("mean |gradient| of the first", mean),
        ],
        fix="ReLU-like activations, residual connections or normalisation between the layers; "
        "initialise for the activation used",
    )


def _front(evidence: Evidence, parameter: ParameterStats) -> Culprit:
    """The layer of a parameter, with the line that calls it."""
    module = parameter.name.rpartition(".")[0]
    calls = calls_of(evidence)
    site = (
        next(
            (one.site for one in calls.calls if one.module == module and one.site is not None), None
        )
        if calls is not None
        else None
    )
    return Culprit(
        kind="module",
        module=module,
        module_type=parameter.module_type,
        parameter=parameter.name,
        location=site,
    )


def _nearly_zero(rule: Rule, evidence: Evidence, layers: list[ParameterStats]) -> Iterable[Claim]:
    """Half of the layers and more get gradients that move nothing, in a run that came no lower: a
    signal that shrinks with every layer leaves all of them alike, forwards and backwards."""
    least = limit(evidence, "vanishing-gradients.mean")
    small = [p for p in layers if (p.grad_norm or 0.0) / math.sqrt(math.prod(p.shape)) < least]
    if len(small) < len(layers) / 2 or late_loss(evidence.losses) < NO_BETTER * evidence.losses[0]:
        return
    front = small[0]
    size = (front.grad_norm or 0.0) / math.sqrt(math.prod(front.shape))
    yield learning_claim(
        rule,
        ("gradients", "vanish"),
        scope=Scope.LAYERS,
        title=f"{len(small)} of {len(layers)} layers get gradients below {least:g}",
        explanation="The signal shrinks from layer to layer, forwards or backwards, until next to nothing "
        "is left of it; the loss has not come down.",
        culprit=_front(evidence, front),
        weight=confidence(0.7, 0.4 if len(small) == len(layers) else 0.2),
        phase="backward",
        step=0,
        notes=[
            (f"mean |gradient| of {front.name}", size),
            ("layers", f"{len(small)} of {len(layers)}"),
        ],
        fix="larger initial weights (xavier_uniform_, kaiming_uniform_), normalisation between "
        "the layers",
    )


def _falls(norms: list[float]) -> float:
    """Share of the pairs of layers in which the one nearer the input has the smaller gradient."""
    pairs = [(a, b) for i, a in enumerate(norms) for b in norms[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)


# -- ND603, ND604, ND629 ---------------------------------------------------------------------------


def _dead_units(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < SHORTEST:
        return
    for one in inspection.units:
        if (
            not one.saturated
            and one.units >= 1
            and one.values >= _FEWEST_VALUES * one.units
            and one.call.name not in ("sigmoid", "tanh")
        ):
            claim = _dead(rule, evidence, one)
            if claim is not None:
                yield claim
                return


def _dead(rule: Rule, evidence: Evidence, one: UnitFacts) -> Claim | None:
    call, inspection = one.call, evidence.inspection
    assert inspection is not None
    whole = one.dead == one.units
    # a margin or a penalty that is met, not a layer
    if one.output and not _is_predicted(inspection.calls, call, (*_OVER_LOGITS, *REGRESSION)):
        return None
    if whole:
        title = (
            f"{call.name} returns 0 for every sample: all {one.units} units are dead"
            if one.units > 1
            else f"{call.name} returns 0 for every sample"
        )
        why = (
            "Its input is negative everywhere, where its derivative is 0: no gradient comes "
            "through it any more, and nothing can change that."
        )
    elif one.output and one.dead and _is_predicted(inspection.calls, call, _OVER_LOGITS):
        title = (
            f"{call.name} on the outputs: {one.dead} of {one.units} classes are 0 for every sample"
        )
        why = (
            "A loss over logits needs them to go below zero; where this one clips, the class gets "
            "no gradient."
        )
    elif (
        one.output
        or one.dead <= limit(evidence, "dead-units.share") * one.units
        or one.units < _FEWEST_UNITS
        or inspection.batches < 2
    ):
        return None
    else:
        title = f"{one.dead} of {one.units} units are dead after {call.name}"
        why = (
            "They were 0 for every sample of "
            f"{count(inspection.batches, 'batch').replace('batchs', 'batches')}: they get no "
            "gradient and add nothing."
        )
    # a dead branch beside one that learns is no end of the run
    serious = one.output or (whole and late_loss(evidence.losses) > evidence.losses[0] / 2)
    return learning_claim(
        rule,
        location_key(call.site) or ("units", call.module),
        scope=Scope.CAUSE if one.output else Scope.LAYERS,
        title=title,
        explanation=why,
        culprit=at_call(call, evidence),
        severity="critical" if serious else "warning",
        step=inspection.step,
        weight=confidence(
            0.8 if serious else 0.6, 0.4 if inspection.batches > 2 else 0.1, 0.4 if whole else 0.0
        ),
        specificity=Specificity.EXACT if serious else Specificity.SPECIAL,
        notes=[
            ("dead units", f"{one.dead} of {one.units}"),
            ("values looked at", one.values),
            ("batches", inspection.batches),
        ],
        fix="no activation on the output"
        if one.output
        else "a lower learning rate, LeakyReLU or GELU, and an initialisation meant for ReLU "
        "(kaiming)",
    )


def _is_predicted(calls: StepCalls, call: CallFacts, losses: tuple[str, ...]) -> bool:
    """What it returns is what one of these losses compares with targets."""
    loss = loss_call(calls, losses)
    made = calls.origin(loss.arguments[0]) if loss is not None and loss.arguments else None
    return isinstance(made, CallFacts) and made.index == call.index


def _gates(calls: StepCalls) -> set[int]:
    """Calls whose output, perhaps as a view or a part, is multiplied with something or blends two
    things."""
    found = set()
    for call in calls.calls:
        if call.name in ("mul", "lerp", "addcmul", "where", "matmul", "bmm", "einsum"):
            for argument in call.arguments:
                made = calls.origin(argument)
                while isinstance(made, CallFacts):
                    found.add(made.index)
                    if made.name not in _PARTS or not made.arguments:
                        break
                    made = calls.origin(made.arguments[0])
    return found


def _saturated_activations(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < SHORTEST:
        return
    calls = inspection.calls
    gates = _gates(calls)
    for one in inspection.units:
        if (
            one.saturated <= limit(evidence, "saturated-activations.share")
            or one.output
            or one.call.index in gates
            or one.values < _FEWEST_VALUES * _FEWEST_UNITS
        ):
            continue
        yield learning_claim(
            rule,
            location_key(one.call.site) or ("units", one.call.module),
            scope=Scope.LAYERS,
            title=f"{one.saturated:.0%} of {one.call.name}'s outputs lie in its flat part",
            explanation="There its derivative is below 0.01: what comes back to the layers before it is a "
            "hundredth of the gradient, and less.",
            culprit=at_call(one.call, evidence),
            severity=rule.severity,
            step=inspection.step,
            weight=confidence(
                0.6, 0.5 if one.saturated > 0.9 else 0.2, 0.3 if inspection.batches > 1 else 0.0
            ),
            notes=[
                ("share in the flat part", round(one.saturated, 3)),
                ("values looked at", one.values),
            ],
            fix="normalise the inputs, smaller initial weights, or normalisation before the "
            "activation",
        )
        return


def _unreachable_target(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    calls = inspection.calls
    loss = loss_call(calls, REGRESSION)
    made = calls.origin(loss.arguments[0]) if loss is not None and len(loss.arguments) > 1 else None
    if (
        loss is None
        or not isinstance(made, CallFacts)
        or not loss.arguments[0].requires_grad
        or loss.arguments[1].requires_grad
    ):
        return
    if made.name not in _RANGES:
        return
    low, high, label = _RANGES[made.name]
    share = loss.notes.get(label, 0.0)
    if share < limit(evidence, "unreachable-target.share"):
        return
    yield learning_claim(
        rule,
        location_key(made.site) or ("units", made.module),
        title=f"{made.name} on the output cannot reach {share:.0%} of the targets",
        explanation=f"{made.name} returns values in [{low:g}, {high:g}]; the targets go from "
        f"{loss.notes.get('target_min', math.nan):.3g} to "
        f"{loss.notes.get('target_max', math.nan):.3g}. The model is pushed into the flat "
        "part of its last activation.",
        culprit=at_call(made, evidence),
        step=0,
        weight=confidence(0.8, 0.5 if share > 0.3 else 0.1),
        specificity=Specificity.SPECIAL,
        notes=[("targets out of reach", f"{share:.0%}")],
        fix="no activation on the output of a regression, or targets scaled to its range",
    )


# -- ND605, ND610 ----------------------------------------------------------------------------------


def _update_ratio(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if (
        stats is None
        or len(evidence.losses) < SHORTEST
        or not evidence.optimizer_sites
        or evidence.trip is not None
    ):
        return
    # a warm-up, or a group that is frozen by its rate
    if not stats.rates or any(not rates or min(rates) == 0 for rates in stats.rates):
        return
    if (
        evidence.loop is not None
        and evidence.loop.optimizer_steps is not None
        and evidence.loop.optimizer_steps < SHORTEST
    ):
        return
    missing = (
        {p.name for p in evidence.ownership.missing} if evidence.ownership is not None else set()
    )
    still = [
        p
        for p in stats.parameters
        if p.trainable and p.moved == 0.0 and _is_felt(p) and p.name not in missing
    ]
    moving = [p for p in stats.parameters if p.moved]
    if not still or any(
        one.kind in (DISCARDED, NEVER_STEPPED)
        for one in (evidence.loop.misuses if evidence.loop else ())
    ):
        return
    first = still[0]
    yield learning_claim(
        rule,
        ("updates", "none"),
        scope=Scope.LAYERS,
        title=f"{count(len(still), 'parameter')} {'has' if len(still) == 1 else 'have'} not moved "
        f"by a bit in {len(evidence.losses)} steps: {_names(still)}",
        explanation=f"They get gradients (norm {first.grad_norm:.2g} for {first.name}), an optimizer "
        "holds them, and the learning rate is not zero: what the updates add is too small to "
        "change the values in their dtype, or something puts the values back.",
        culprit=Culprit(
            kind="parameter",
            parameter=first.name,
            module=first.name.rpartition(".")[0],
            module_type=first.module_type,
            location=next((one for one in evidence.optimizer_sites if one is not None), None),
        ),
        phase="optimizer",
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, 0.4 if len(still) > 2 or not moving else 0.1),
        notes=[("not moved", _names(still)), ("learning rate", f"{max(stats.rates[-1]):.3g}")],
        fix="keep the weights in float32 (autocast instead of half-precision parameters), or "
        "raise the learning rate",
    )


def _is_felt(parameter: ParameterStats) -> bool:
    """A gradient that is more than rounding: that of a bias before BatchNorm is nothing else."""
    return (
        len(parameter.shape) >= 2
        and (parameter.grad_norm or 0.0) / math.sqrt(math.prod(parameter.shape)) > _FELT
    )


def _names(parameters: list[ParameterStats]) -> str:
    shown = ", ".join(p.name for p in parameters[:4])
    return shown + (f" and {len(parameters) - 4} more" if len(parameters) > 4 else "")


def _is_a_layers(parameter: ParameterStats) -> bool:
    """A weight whose rows are units; a parameter of the user's own may hold anything."""
    return (
        parameter.module_type.startswith(("Linear", "Conv", "LSTM", "GRU", "RNN"))
        and "weight" in parameter.name.rpartition(".")[2]
    )


def _poor_initialisation(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or len(evidence.losses) < SHORTEST:
        return
    same = [
        p
        for p in stats.parameters
        if p.trainable and p.identical_rows and p.moved and p.grad_norm and _is_a_layers(p)
    ]
    if not same:
        return
    first = same[0]
    module = first.name.rpartition(".")[0]
    yield learning_claim(
        rule,
        ("init", first.name),
        title=f"all {first.shape[0]} units of {first.name} have the same weights",
        explanation="They began alike, so they get the same gradient and stay alike: after "
        f"{count(len(evidence.losses), 'step')} the rows still differ by rounding only. "
        "The layer computes one number, many times.",
        culprit=Culprit(
            kind="parameter", parameter=first.name, module=module, module_type=first.module_type
        ),
        phase="setup",
        step=0,
        weight=confidence(
            0.7, 0.6 if len(evidence.losses) > 3 * SHORTEST else 0.3, 0.3 if len(same) > 1 else 0.0
        ),
        stage=Stage.WIRING,
        specificity=Specificity.SPECIAL,
        notes=[("also", _names(same[1:]) if len(same) > 1 else None)],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_); constants "
        "are for biases",
    )


def _frozen_statistics(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    still = [one for one in inspection.modes if one.momentum == 0 and one.training]
    if still:
        first = still[0]
        yield learning_claim(
            rule,
            location_key(first.made_at) or ("statistics", first.module),
            title=f"{first.module_type} with momentum 0 never updates its running statistics"
            + (f" ({len(still)} layers)" if len(still) > 1 else ""),
            explanation="In training it normalises by the batch; in eval mode it will normalise by "
            "running statistics that are still mean 0 and variance 1. torch's momentum is the "
            "share of the new value, not of the old.",
            culprit=Culprit(
                kind="module",
                module=first.module,
                module_type=first.module_type,
                location=first.made_at,
            ),
            weight=confidence(0.8, 0.6 if all(one.untouched for one in still) else 0.0),
            step=0,
            notes=[("momentum", 0.0)],
            fix="momentum=0.1 (torch's 0.1 is what other libraries call 0.9)",
        )


RULES = (
    learning_rule(
        "ND602",
        "vanishing-gradients",
        "warning",
        "gradients shrink to nothing on their way to the first layers",
        _vanishing_gradients,
    ),
    learning_rule(
        "ND603", "dead-units", "warning", "units that are zero for every sample", _dead_units
    ),
    learning_rule(
        "ND604",
        "saturated-activations",
        "warning",
        "sigmoid or tanh in its flat part",
        _saturated_activations,
    ),
    learning_rule(
        "ND605", "update-ratio", "warning", "updates too small to change a weight", _update_ratio
    ),
    learning_rule(
        "ND610",
        "poor-initialisation",
        "critical",
        "all units of a layer have the same weights",
        _poor_initialisation,
    ),
    learning_rule(
        "ND625",
        "frozen-statistics",
        "warning",
        "batch norm statistics that never move",
        _frozen_statistics,
    ),
    learning_rule(
        "ND629",
        "unreachable-target",
        "critical",
        "an output activation that cannot produce the targets",
        _unreachable_target,
    ),
)
