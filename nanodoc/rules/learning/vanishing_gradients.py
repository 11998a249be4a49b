"""## What it checks
The gradient norms of the layers' weights, as the median over all steps. Reported if the norm at the
first layers is below a thousandth of that at the last ones, with a steady fall in between
(embeddings excluded); or if half of the layers have gradients below 1e-7 and the loss has not come
down.

## Why it matters
The first layers stay random; the last ones learn from noise.

## Example
    nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Sigmoid())])

## Fix
ReLU-like activations, residual connections, normalisation.

## See also
ND604 saturated-activations, ND306 gradient-underflow
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import ParameterStats
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    calls_of,
    learning_claim,
)

_DEEP = 6  # layers


@rule(
    "ND602",
    "vanishing-gradients",
    "warning",
    "gradients vanish on their way to the first layers",
    needs=("stats",),
    thresholds={
        "ratio": Threshold(0.001, "gradient norm of the first layers over that of the last"),
        "mean": Threshold(1e-07, "mean |gradient| of a layer"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    # nets of their own, with a loss and an optimizer each, stand in no row
    if len(evidence.losses) < SHORTEST or len(evidence.optimizer_sites) > 1:
        return
    for layers in _rows(evidence, _layers(evidence)):
        found = list(_in_a_row(rule, evidence, layers)) if len(layers) >= _DEEP else []
        if found:
            yield from found
            return


def _in_a_row(rule: Rule, evidence: Evidence, layers: list[ParameterStats]) -> Iterable[Claim]:
    """Of layers that are computed one from the other, the first first."""
    norms = [p.grad_norm or 0.0 for p in layers]
    quarter = max(len(norms) // 4, 1)
    first, last = statistics.median(norms[:quarter]), statistics.median(norms[-quarter:])
    if (
        last == 0
        or first == 0
        or first / last >= check.limit(evidence, "ratio")
        or _falls(norms) < 0.8
    ):
        yield from _nearly_zero(rule, evidence, layers)
        return
    front = layers[0]
    mean = (front.grad_norm or 0.0) / math.sqrt(math.prod(front.shape))
    yield learning_claim(
        rule,
        ("gradients", "vanish"),
        standing=Standing(scope=Scope.LAYERS),
        title=f"gradients vanish on their way to the first layers: {first:.2g} there, {last:.2g} "
        "in "
        "the last",
        explanation=f"From layer to layer the gradient norm falls, to {first / last:.1g} of its "
        "size at the input: the first layers stay as they were initialised.",
        culprit=_front(evidence, front),
        weight=confidence(
            0.7,
            0.5 if mean < check.limit(evidence, "mean") else 0.2,
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
        fix="use ReLU-like activations, residual connections or normalisation between the "
        "layers; initialise for the activation used",
    )


def _layers(evidence: Evidence) -> list[ParameterStats]:
    """Weights of layers, in the model's order; embeddings get gradients for some rows only."""
    stats = evidence.stats
    if stats is None:
        return []
    weights = [
        p for p in stats.parameters if p.trainable and len(p.shape) >= 2 and p.grad_norm is not None
    ]
    return [p for p in weights if "Embedding" not in p.module_type and math.prod(p.shape[1:]) > 1]


def _rows(evidence: Evidence, layers: list[ParameterStats]) -> list[list[ParameterStats]]:
    """The layers behind each layer that none is computed from: nets beside each other (a policy and
    its critic) are rows of their own. All of them as one, where the calls do not tell."""
    calls = calls_of(evidence)
    modules = {p.name: p.name.rpartition(".")[0] for p in layers}
    behind: dict[int, frozenset[str]] = {}  # by call: the layers that its output is made of
    ends: set[frozenset[str]] = set()
    for call in calls.calls if calls is not None else ():
        own = {call.module} if call.module and call.module in modules.values() else set()
        inner = [behind[a.made_by] for a in call.arguments if a.made_by is not None]
        behind[call.index] = made = frozenset(own).union(*inner)
        if own:
            ends.add(made)
    whole = [row for row in ends if not any(row < other for other in ends)]
    if frozenset().union(*whole) != set(modules.values()):
        return [layers]
    return [[p for p in layers if modules[p.name] in row] for row in whole]


def _front(evidence: Evidence, parameter: ParameterStats) -> Culprit:
    """The layer of a parameter, with the line that calls it."""
    module = parameter.name.rpartition(".")[0]
    calls = calls_of(evidence)
    site = (
        next(
            (call.site for call in calls.calls if call.module == module and call.site is not None),
            None,
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
    least = check.limit(evidence, "mean")
    small = [p for p in layers if (p.grad_norm or 0.0) / math.sqrt(math.prod(p.shape)) < least]
    if len(small) < len(layers) / 2 or late_loss(evidence.losses) < NO_BETTER * evidence.losses[0]:
        return
    front = small[0]
    size = (front.grad_norm or 0.0) / math.sqrt(math.prod(front.shape))
    yield learning_claim(
        rule,
        ("gradients", "vanish"),
        standing=Standing(scope=Scope.LAYERS),
        title=f"{len(small)} of {len(layers)} layers get gradients below {least:g}",
        explanation="The signal shrinks from layer to layer, forward or backward, until almost "
        "nothing is left; the loss has not come down.",
        culprit=_front(evidence, front),
        weight=confidence(0.7, 0.4 if len(small) == len(layers) else 0.2),
        phase="backward",
        step=0,
        notes=[
            (f"mean |gradient| of {front.name}", size),
            ("layers", f"{len(small)} of {len(layers)}"),
        ],
        fix="use larger initial weights (xavier_uniform_, kaiming_uniform_) or normalisation "
        "between the layers",
    )


def _falls(norms: list[float]) -> float:
    """Share of the pairs of layers in which the one nearer the input has the smaller gradient."""
    pairs = [(a, b) for i, a in enumerate(norms) for b in norms[i + 1 :]]
    return sum(a < b for a, b in pairs) / len(pairs)
