"""## What it checks
Weights whose rows are equal, up to rounding, when the run ends, although they have moved.

## Why it matters
Units that begin alike get equal gradients and stay alike: the layer is as good as one unit.

## Example
    nn.init.constant_(layer.weight, 0.01)

## Fix
Random initial values.

## Options
A matrix that starts at zero behind a random one (LoRA's B) is no such case: its rows part at once.

## See also
ND611 initial-loss
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import ParameterStats
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    learning_claim,
)
from nanodoc.rules.learning.units import shown_names


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
        standing=Standing(stage=Stage.WIRING, specificity=Specificity.SPECIAL),
        notes=[("also", shown_names(same[1:]) if len(same) > 1 else None)],
        fix="initialise with random values (nn.init.kaiming_uniform_, xavier_uniform_); constants "
        "are for biases",
    )


def _is_a_layers(parameter: ParameterStats) -> bool:
    """A weight whose rows are units; a parameter of the user's own may hold anything."""
    return (
        parameter.module_type.startswith(("Linear", "Conv", "LSTM", "GRU", "RNN"))
        and "weight" in parameter.name.rpartition(".")[2]
    )
