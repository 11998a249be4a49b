"""## What it checks
Weights whose rows are equal, up to rounding, at the end of the run although they have changed; at
least half of all layers with equal rows at the start; weights that are all zeros and get a gradient
of exactly zero in every step; and at least half of all layers without a single negative weight at
the start.

## Why it matters
Units that start out identical get equal gradients and stay identical: the layer is worth one unit.

## Example
    nn.init.constant_(layer.weight, 0.01)

## Fix
Random initial values.

## Options
A matrix that starts at zero after a random one (LoRA's B) is not reported: its rows differ at once.

## See also
ND611 initial-loss
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import ParameterStats, RunStatistics
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    at_parameter,
    learning_claim,
)
from nanodoc.rules.learning.units import shown_names

_MOST = 0.5  # of the layers
_FEWEST = 32  # weights: fewer may be positive by chance


@rule(
    "ND610",
    "poor-initialisation",
    "critical",
    "all units of a layer have the same weights",
    needs=("stats",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or len(evidence.losses) < SHORTEST:
        return
    zero = [p for p in stats.parameters if _stays_zero(p)]
    if zero:
        yield _zero(rule, evidence, zero, stats)
        return
    same = [
        p
        for p in stats.parameters
        if p.trainable and p.identical_rows and p.moved and p.grad_norm and _is_a_layers(p)
    ]
    if not same:
        yield from _began_alike(rule, evidence, stats)
        yield from _began_positive(rule, evidence, stats)
        return
    first = same[0]
    yield learning_claim(
        rule,
        ("init", first.name),
        title=f"all {first.shape[0]} units of {first.name} have the same weights",
        explanation="They started out identical, so they get the same gradient and stay "
        f"identical: after {count(len(evidence.losses), 'step')} the rows still differ only "
        "by rounding. The layer computes one number many times.",
        culprit=at_parameter(first),
        phase="setup",
        step=0,
        weight=confidence(
            0.7, 0.6 if len(evidence.losses) > 3 * SHORTEST else 0.3, 0.3 if len(same) > 1 else 0.0
        ),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.SPECIAL),
        notes=[("also", shown_names(same[1:]) if len(same) > 1 else None)],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_); constants "
        "are for biases",
    )


def _began_alike(rule: Rule, evidence: Evidence, stats: RunStatistics) -> Iterable[Claim]:
    """Half of the layers and more began with equal units. A single such layer parts at the first
    step, by the random weights around it."""
    layers = [p for p in stats.parameters if p.trainable and _is_a_layers(p) and p.shape[0] > 1]
    alike = [p for p in layers if p.began_alike]
    if len(alike) < 2 or len(alike) < _MOST * len(layers):
        return
    first = alike[0]
    yield learning_claim(
        rule,
        ("init", first.name),
        title=f"{len(alike)} of {count(len(layers), 'layer')} started with the same weights in "
        "every unit",
        explanation="Units that start out identical compute the same number and get the same "
        "gradient; only rounding, and the gradients from the few random weights, make them "
        "differ.",
        culprit=at_parameter(first),
        phase="setup",
        step=0,
        severity="warning",
        weight=confidence(0.7, 0.6 if len(alike) == len(layers) else 0.3),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.SPECIAL),
        notes=[("also", shown_names(alike[1:]))],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_, normal_ "
        "with a standard deviation above 0); constants are for biases",
    )


def _began_positive(rule: Rule, evidence: Evidence, stats: RunStatistics) -> Iterable[Claim]:
    """Half of the layers and more began without a negative weight, as `uniform_` without bounds
    fills them. A layer or two may be meant to be positive."""
    layers = [p for p in stats.parameters if p.trainable and _is_a_layers(p)]
    positive = [p for p in layers if p.began_positive and math.prod(p.shape) >= _FEWEST]
    if len(positive) < 2 or len(positive) < _MOST * len(layers):
        return
    first = positive[0]
    yield learning_claim(
        rule,
        ("init", first.name),
        title=f"{len(positive)} of {count(len(layers), 'layer')} started without a negative weight",
        explanation="Sums of positive weights grow with the number of inputs, and all units of a "
        "layer give nearly the same output: activations saturate, and the units become "
        "different only slowly.",
        culprit=at_parameter(first),
        phase="setup",
        step=0,
        severity="warning",
        weight=confidence(0.7, 0.4 if len(positive) == len(layers) else 0.1),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.SPECIAL),
        notes=[("also", shown_names(positive[1:]))],
        fix="use a range with both signs, such as nn.init.uniform_(weight, -0.08, 0.08), or use "
        "kaiming_uniform_ or xavier_uniform_",
    )


def _stays_zero(parameter: ParameterStats) -> bool:
    """A weight of zeros that got a gradient of exactly zero all along. A zero that is meant (a
    residual branch's last layer, LoRA's second matrix) gets a gradient and leaves zero."""
    return (
        parameter.trainable
        and len(parameter.shape) >= 2
        and parameter.norm == 0
        and parameter.grad_norm == 0
    )


def _zero(
    rule: Rule, evidence: Evidence, zero: list[ParameterStats], stats: RunStatistics
) -> Claim:
    """Critical where no weight of the model gets a gradient. A single layer of zeros beside others
    that learn is not used yet, which a coefficient in front of it may be the reason of."""
    first = zero[0]
    several = len(zero) > 1
    dead = not any(p.grad_norm for p in stats.parameters if len(p.shape) >= 2)
    why = (
        "A layer of zeros outputs zeros for any input. Its gradient is the product of its input "
        "and the gradient from the layers after it; if those are zero as well, it stays zero."
        if several or dead
        else "Nothing computed from it gets a gradient: it is not used yet."
    )
    return learning_claim(
        rule,
        ("init", first.name),
        title=f"{shown_names(zero)} {'are' if several else 'is'} all zeros and "
        f"{'get' if several else 'gets'} a gradient of zero",
        explanation=f"{why} In {count(len(evidence.losses), 'step')} it has not changed.",
        culprit=at_parameter(first),
        phase="setup",
        step=0,
        severity="critical" if dead else "warning" if several else "info",
        weight=confidence(0.7, 0.6 if several else 0.3),
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.SPECIAL),
        notes=[("also", shown_names(zero[1:]) if several else None)],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_)"
        if several or dead
        else "check what lies between it and the loss",
    )


def _is_a_layers(parameter: ParameterStats) -> bool:
    """A weight whose rows are units; a parameter of the user's own may hold anything."""
    return (
        parameter.module_type.startswith(("Linear", "Conv", "LSTM", "GRU", "RNN"))
        and "weight" in parameter.name.rpartition(".")[2]
    )
