"""## What it checks
A regression loss whose target was drawn at random in the step, with the shape of a part of the
batch, like the noise of a diffusion model; the prediction uses that part of the batch, but not the
noise.

## Why it matters
Noise that is not in the input cannot be predicted. The model learns to predict its mean.

## Example
    noisy = scheduler.add_noise(images, noise, t)
    loss = F.mse_loss(model(images, t), noise)

## Fix
    loss = F.mse_loss(model(noisy, t), noise)

## See also
ND122 leaked-target
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import DRAWS, REGRESSION


@rule(
    "ND123",
    "unseen-noise",
    "critical",
    "the model should predict noise that is not in its input",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        compares = call.name in REGRESSION or call.name == "sub"
        if call.index not in reaching or not compares or len(call.arguments) < 2:
            continue
        for side, other in (call.arguments[:2], call.arguments[1::-1]):
            noise = _draw(calls, other) if side.requires_grad else None
            if noise is None:
                continue
            made_of, leaves = calls.behind(side)
            data = [leaf for leaf in leaves if leaf.shape == noise.shape and leaf.of_batch]
            if data and noise.index not in made_of:
                other_draw = _other_draw(calls, made_of, noise)
                used = _is_used(calls, noise) and other_draw is None
                yield _claim(rule, evidence, call, noise, data[0], used=used, instead=other_draw)
                return


def _claim(
    rule: Rule,
    evidence: Evidence,
    call: CallFacts,
    noise: CallFacts,
    data: ArgumentFacts,
    *,
    used: bool,
    instead: CallFacts | None,
) -> Claim:
    """`instead`: another draw, which the data were mixed with."""
    site = noise.site
    inspection = evidence.inspection
    given = inspection.model_called_at if inspection is not None and used else None
    culprit = at_call(call if used or site is None else instead or noise, evidence)
    if given is not None:
        culprit = replace(culprit, location=given)
    drawn = f"{noise.name} at {site.place}" if site is not None else noise.name
    return learning_claim(
        rule,
        location_key(call.site) or ("unseen", call.index),
        title="the model should predict noise that is not in its input",
        explanation=f"The target is {drawn}. The prediction is made from {data.leaf}, of the same "
        "shape, and nothing made from the noise goes into it."
        + (f" {instead.name}, a different draw, does." if instead is not None else ""),
        # a second draw, where what the data were mixed with is meant
        culprit=culprit,
        step=0,
        # added to the data, and what came of it forgotten: no training on pure chance
        weight=confidence(0.8, 0.6 if used else 0.0),
        notes=[("noise", drawn), ("input", data.leaf), ("shape", str(noise.shape))],
        fix="pass the model the noisy data made with this noise",
        standing=WIRED,
    )


def _draw(calls: StepCalls, argument: ArgumentFacts) -> CallFacts | None:
    """The random draw whose values these are."""
    made = calls.origin(argument)
    drawn = isinstance(made, CallFacts) and made.name.startswith(DRAWS) and len(made.shape) > 1
    return made if drawn and isinstance(made, CallFacts) else None


def _other_draw(calls: StepCalls, made_of: set[int], noise: CallFacts) -> CallFacts | None:
    """Another draw of the same kind and shape among what the prediction is made of."""
    return next(
        (
            calls.calls[index]
            for index in sorted(made_of)
            if calls.calls[index].name == noise.name and calls.calls[index].shape == noise.shape
        ),
        None,
    )


def _is_used(calls: StepCalls, noise: CallFacts) -> bool:
    """Something besides the loss is made of it."""
    readers = [c for c in calls.calls if any(a.made_by == noise.index for a in c.arguments)]
    return len(readers) > 1
