"""## What it checks
A regression whose target was drawn in the step with `torch.rand`, where the model reads the sum of
that noise and data from outside of the step without randomness: a diffusion model that learns to
predict noise.

## Why it matters
Denoising starts from normal noise with mean 0 and variance 1, and its formulas hold only for that.
Uniform noise has a mean of 0.5 and a variance of 1/12: the loss is low, but samples generated from
normal noise do not look like the data.

## Example
    noise = torch.rand_like(images)
    noisy = scheduler.add_noise(images, noise, t)

## Fix
    noise = torch.randn_like(images)

## See also
ND123 unseen-noise; Ho et al. 2020, Denoising diffusion probabilistic models, algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import DRAWS, REGRESSION

_UNIFORM = ("rand", "rand_like")
_MIXING = ("add", "addcmul", "lerp")


@rule(
    "ND139",
    "uniform-noise",
    "warning",
    "a diffusion model whose noise is uniform, not normal",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in (*REGRESSION, "sub") or len(call.arguments) < 2:
            continue
        for side, other in (call.arguments[:2], call.arguments[1::-1]):
            noise = calls.origin(other)
            if not side.requires_grad or other.requires_grad:
                continue
            if not isinstance(noise, CallFacts) or noise.name not in _UNIFORM:
                continue
            if len(noise.shape) < 2 or not _is_added(calls, noise, calls.behind(side)[0]):
                continue
            yield learning_claim(
                rule,
                location_key(noise.site) or ("noise", noise.index),
                title="the noise that the model should predict is uniform from 0 to 1, not normal",
                explanation=f"{noise.name} draws it. It is added to the data that the model "
                f"reads, and {call.name} compares the prediction with it.",
                culprit=at_call(noise, evidence),
                step=len(evidence.losses) - 1,
                weight=confidence(0.7, 0.5 if call.name in REGRESSION else 0.2),
                notes=[("compared at", call.site.place if call.site is not None else None)],
                fix="draw it with torch.randn_like",
                standing=WIRED,
            )
            return


def _is_added(calls: StepCalls, noise: CallFacts, made_of: set[int]) -> bool:
    """A sum on the way to the prediction: the noise, and data of its shape."""
    for index in sorted(made_of):
        total = calls.calls[index]
        if total.name not in _MIXING or total.shape != noise.shape:
            continue
        terms = [a for a in total.arguments if a.shape == noise.shape and not a.requires_grad]
        noisy = [a for a in terms if noise.index in calls.behind(calls.maker(a) or a)[0]]
        others = [a for a in terms if a not in noisy]
        if len(noisy) == 1 and len(others) == 1 and _is_data(calls, others[0], noise):
            return True
    return False


def _is_data(calls: StepCalls, term: ArgumentFacts, noise: CallFacts) -> bool:
    """Of a tensor of that shape from outside, perhaps scaled, and drawn by nobody."""
    made = calls.maker(term)
    scaled = made is not None and made.name == "mul"
    factors = list(made.arguments) if made is not None and scaled else [term]
    whole = [a for a in factors if a.shape == noise.shape]
    origins = [calls.origin(a) for a in whole]
    return any(
        isinstance(origin, ArgumentFacts) or (not origin.name.startswith(DRAWS))
        for origin in origins
    )
