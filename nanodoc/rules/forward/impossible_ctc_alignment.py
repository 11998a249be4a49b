"""## What it checks
An infinite CTC loss with targets longer than their input, counting the blank required between
repeated labels.

## Why it matters
Strided encoders shorten the input; one long transcript then makes the loss inf and every gradient
NaN.

## Example
    F.ctc_loss(log_probs, targets, input_lengths=tensor([12]), target_lengths=tensor([15]))

## Fix
Drop such samples, or pass zero_infinity=True.

## See also
ND101 non-finite-input
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import SetKeyword, WithoutSamples
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import CtcLengths
from nanodoc.rules.base import birth_claim
from nanodoc.rules.rewrite import with_keyword


@rule(
    "ND212",
    "impossible-ctc-alignment",
    "critical",
    "targets longer than the input frames: infinite CTC loss",
    preflight="gradients",
    trials=("values",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for birth in evidence.births:
        site = birth.site
        if "ctc_loss" not in site.short:
            continue
        notes = site.notes if isinstance(site.notes, CtcLengths) else None
        too_long = notes.too_long if notes is not None else 0
        if not (too_long or (notes is not None and notes.tight) or birth.kind == "inf"):
            continue
        if notes is not None and notes.first is not None:
            sample, frames, labels = notes.first
            text = (
                f"{too_long} of {notes.targets} targets are longer than their input: sample "
                f"{sample} has {labels} labels and {frames} frames. No alignment exists, and "
                "−log(0) = inf."
            )
        else:
            text = (
                "A target with repeated labels needs a blank between them, hence more frames than "
                "its input has. No alignment exists, and −log(0) = inf."
            )
        yield birth_claim(
            rule,
            evidence,
            birth,
            title="a CTC target without a possible alignment has an infinite loss",
            explanation=text,
            exact=1.0 if too_long else 0.6,
            specificity=Specificity.SPECIAL,
            extra=[
                ("targets", notes.targets if notes is not None else 0),
                ("longer than their input", too_long),
            ],
            fixes=[
                Fix(
                    title="pass zero_infinity=True, which leaves such samples out of the loss",
                    patch=with_keyword(site, "zero_infinity", True),
                    remedy=SetKeyword(
                        location=site.location,
                        op="ctc_loss",
                        keyword="zero_infinity",
                        value=True,
                    ),
                ),
                Fix(
                    title="drop samples whose target is longer than its frames",
                    confidence="likely",
                    remedy=WithoutSamples(),
                ),
            ],
        )
