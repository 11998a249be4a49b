"""## What it checks
Floating parts of the batch that go straight into a linear, convolutional or recurrent layer without
a normalisation right behind it, and whose median sample has a mean beyond ±10 or a largest |x|
above 50. The batches that are still there when the run ends are looked at (up to eight).

## Why it matters
Layers are initialised for inputs around 0 with a deviation of 1. Raw columns saturate activations
and make the first updates huge.

## Example
    x = torch.tensor(frame.values)       # incomes, years, counts

## Fix
    x = (x - mean) / std

## Options
An input that goes through a normalisation layer first is left alone, and so is a single sample that
is far off.

## See also
ND606 divergence, ND604 saturated-activations
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import batch_claim, consumers
from nanodoc.rules.learning.claims import calls_of

_STD = 100.0  # RULES, ND107

_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


@rule(
    "ND107",
    "unnormalised-input",
    "warning",
    "inputs far from mean 0 and deviation 1",
    needs=(
        "inspection",
        "data",
    ),
    thresholds={
        "mean": Threshold(10.0, "|mean| of the median sample (DLCheck)"),
        "largest": Threshold(50.0, "largest |x| of the median sample (torch-audit)"),
    },
    preflight="batch",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if data is None:
        return
    for leaf in data.leaves:
        largest = max(abs(leaf.minimum), abs(leaf.maximum))
        # a single sample that is far off is another matter
        most = check.limit(evidence, "largest")
        far = abs(leaf.typical_mean) > check.limit(evidence, "mean") or leaf.typical > most
        if not leaf.floating or not far or calls is None:
            continue
        used = [call for call in consumers(calls, leaf.path) if not _normalised(calls, call)]
        if not used:
            continue
        where = used[0]
        place = where.module or "the first layer"
        yield batch_claim(
            rule,
            evidence,
            leaf.path,
            title=f"{leaf.path} goes unnormalised into {place}: values from {leaf.minimum:.3g} to "
            f"{leaf.maximum:.3g}",
            explanation=f"Its mean is {leaf.mean:.3g} and its standard deviation {leaf.std:.3g}; "
            "layers "
            "are initialised for inputs around 0 with a deviation of 1. The first updates are "
            "as much too large as the inputs are.",
            weight=confidence(
                0.6,
                0.4 if leaf.std > _STD or abs(leaf.mean) > _STD else 0.1,
                0.3 if largest > 10 * most else 0.0,
            ),
            notes=[
                ("mean", leaf.mean),
                ("standard deviation", leaf.std),
                ("range", f"{leaf.minimum:.4g} … {leaf.maximum:.4g}"),
                ("used by", where.module or None),
            ],
            fix="(x − mean) / std per feature, images as x / 255, or a normalisation layer first",
        )
        return


def _normalised(calls: StepCalls, call: CallFacts) -> bool:
    """A normalisation comes right behind it, which undoes the scale."""
    for later in calls.calls:
        if later.name in _NORMS and later.arguments:
            made = calls.origin(later.arguments[0])
            if isinstance(made, CallFacts) and made.index == call.index:
                return True
    return False
