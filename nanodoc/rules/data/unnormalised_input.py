"""## What it checks
Floating-point parts of the batch that go straight into a linear, convolutional or recurrent layer
without a normalisation right after it, and whose median sample has a mean beyond ±10 or a largest
|x| above 50. The batches stored at the end of the run are examined (up to eight). The finding names
the line that makes the values of a sample, if known. If a smaller learning rate does far better,
the steps are re-run with the same rate and standardised inputs; ND606 does so in a run that
diverged. The same is tried if a classification learns nothing and the largest |x| of the median
sample is below 0.01, as for images that were divided by 255 twice.

## Why it matters
Layers are initialised for inputs with mean 0 and standard deviation 1. Raw columns saturate
activations and make the first updates huge.

## Example
    x = torch.tensor(frame.values)       # incomes, years, counts

## Fix
    x = (x - mean) / std

## Options
An input that goes through a normalisation layer first is not reported, nor is a single outlier.

## See also
ND606 divergence, ND604 saturated-activations
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import FAR_MEAN, FAR_VALUE
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.rates import compared
from nanodoc.facts.trials import FarInputs
from nanodoc.rules.data.batch_claims import batch_claim, consumers
from nanodoc.rules.learning.claims import calls_of
from nanodoc.rules.learning.input_scale import of_the_inputs, standardise
from nanodoc.vocabulary.calls import NORMALISATIONS

_STD = 100.0  # RULES, ND107


@rule(
    "ND107",
    "unnormalised-input",
    "warning",
    "inputs far from mean 0 and standard deviation 1",
    needs=(
        "inspection",
        "data",
    ),
    thresholds={
        "mean": Threshold(FAR_MEAN, "|mean| of the median sample (DLCheck)"),
        "largest": Threshold(FAR_VALUE, "largest |x| of the median sample (torch-audit)"),
    },
    preflight="batch",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    pattern = evidence.pattern
    if pattern is not None and pattern.far is not None:
        if not pattern.far.diverged:  # of a run that diverged ND606 tells
            yield _shown(rule, evidence, pattern.far)
        return
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
        claim = batch_claim(
            rule,
            evidence,
            leaf.path,
            title=f"{leaf.path} is passed unnormalised into {place}: values from "
            f"{leaf.minimum:.3g} to {leaf.maximum:.3g}",
            explanation=f"Its mean is {leaf.mean:.3g} and its standard deviation {leaf.std:.3g}; "
            "layers are initialised for inputs with mean 0 and standard deviation 1. The "
            "first updates are too large by the same factor as the inputs.",
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
            fix="use (x − mean) / std per feature, x / 255 for images, or a normalisation layer "
            "first",
        )
        yield _at_its_line(claim, evidence)
        return


def _shown(rule: Rule, evidence: Evidence, far: FarInputs) -> Claim:
    """The claim on inputs that were standardised, with which the same steps end far lower."""
    late = late_loss(compared(evidence))
    claim = batch_claim(
        rule,
        evidence,
        far.path,
        title=f"{far.path} is passed unnormalised into {far.module or 'the model'}: the loss ends "
        f"at {late:.3g} instead of {far.last_loss:.3g}",
        explanation=of_the_inputs(far),
        weight=confidence(0.6, 0.9 * (1 - far.last_loss / late)),
        notes=[
            ("range", f"{far.minimum:.4g} … {far.maximum:.4g}"),
            ("loss of the last quarter", late),
            ("with standardised inputs", far.last_loss),
        ],
        fix="",
        specificity=Specificity.SPECIAL,
    )
    return _at_its_line(
        replace(claim, finding=replace(claim.finding, fixes=(standardise(far),))), evidence
    )


def _at_its_line(claim: Claim, evidence: Evidence) -> Claim:
    """The claim at the line that makes the values, where that was seen."""
    made = evidence.data.far_at if evidence.data is not None else None
    culprit = claim.finding.culprit
    culprit = replace(culprit, location=made or culprit.location)
    return replace(claim, finding=replace(claim.finding, culprit=culprit))


def _normalised(calls: StepCalls, call: CallFacts) -> bool:
    """A normalisation comes right behind it, which undoes the scale."""
    for later in calls.calls:
        if later.name in NORMALISATIONS and later.arguments:
            made = calls.origin(later.arguments[0])
            if isinstance(made, CallFacts) and made.index == call.index:
                return True
    return False
