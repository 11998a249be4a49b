"""## What it checks
The loss of a variational autoencoder whose latent is drawn as `mu + std * noise`: the
reconstruction term is a mean over all elements of the batch, but the KL term is a sum. The finding
says how many times its weight in the evidence lower bound the KL term has. Nothing is reported
below 500 times, or if the latent still distinguishes its samples.

## Why it matters
Only the KL term is learned. The posterior collapses: each sample has the same latent, and the
decoder outputs the mean of the data.

## Example
    reconstruction = F.binary_cross_entropy(output, images)                 # a mean
    kl = -0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp())                # a sum

## Fix
    reconstruction = F.binary_cross_entropy(output, images, reduction="sum")

## See also
Kingma & Welling 2014, Auto-Encoding Variational Bayes, equation 10; Higgins et al. 2017, beta-VAE
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.latents import Latent, latent_of, nats_of, value_of
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import ADDITIONS, SCALINGS, SUPERVISED

_SHORTEST = 20  # steps: in fewer, a latent may not tell its samples apart yet


@rule(
    "ND637",
    "unbalanced-terms",
    "warning",
    "a mean reconstruction with a summed KL term",
    needs=("inspection",),
    thresholds={
        "heavy": Threshold(
            500, "times its weight in the evidence lower bound: the largest beta of β-VAE"
        ),
        "collapsed": Threshold(
            1.0, "nats per sample: a latent that distinguishes samples has more"
        ),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    latent = latent_of(calls) if calls is not None else None
    if calls is None or latent is None or len(evidence.losses) < _SHORTEST:
        return
    for position in calls.losses:
        terms = list(_terms(calls, calls.calls[position]))
        for kl_term, kl in terms:
            nats = nats_of(calls, latent, kl_term, kl)
            if nats is None:
                continue
            for term, mean in terms:
                heavy = _per_element(calls, latent, term, mean)
                if mean.index == kl.index or heavy is None:
                    continue
                weight, per_sample = nats
                times = weight / heavy
                if times >= check.limit(evidence, "heavy") and per_sample < check.limit(
                    evidence, "collapsed"
                ):
                    yield _claim(rule, evidence, kl, mean, times, per_sample)
                    return


def _claim(
    rule: Rule, evidence: Evidence, kl: CallFacts, mean: CallFacts, times: float, nats: float
) -> Claim:
    elements = math.prod(mean.arguments[0].shape)
    where = f" ({mean.site.place})" if mean.site is not None else ""
    return learning_claim(
        rule,
        location_key(kl.site) or ("terms", "kl"),
        title=f"the KL term is weighted {times:.3g} times too much against the reconstruction",
        explanation=f"The reconstruction is a mean over {elements} elements{where}, and the KL "
        f"term is a sum. The latent holds only {nats:.3g} nats per sample: the posterior has "
        "collapsed.",
        culprit=at_call(kl, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.75, 0.5 if nats < 0.1 else 0.0),  # the less is left, the surer
        notes=[("elements of the mean", elements), ("nats per sample", f"{nats:.3g}")],
        fix="sum both terms, or divide the KL term by the number of elements in the mean",
    )


def _terms(calls: StepCalls, root: CallFacts) -> Iterator[tuple[CallFacts, CallFacts]]:
    """(a term of the sum that a loss is, the call that reduces it to a number)"""
    waiting = [root]
    while waiting:
        call = waiting.pop()
        made = [m for a in call.arguments if (m := calls.maker(a)) is not None and a.requires_grad]
        if call.name in ADDITIONS and call.shape == () and len(made) == len(call.arguments) == 2:
            waiting += made
            continue
        reduced = call
        while reduced.name in SCALINGS or (reduced.same_values and reduced.name != "mean"):
            inner = next((a for a in reduced.arguments if a.requires_grad), None)
            before = calls.maker(inner) if inner is not None else None
            if before is None:
                break
            reduced = before
        if reduced.arguments and reduced.shape == ():
            yield call, reduced


def _per_element(
    calls: StepCalls, latent: Latent, term: CallFacts, reduced: CallFacts
) -> float | None:
    """The weight of an element's error in the loss, of a mean over all elements of what the latent
    is decoded to."""
    mean = reduced.name == "mean" or (reduced.name in SUPERVISED and reduced.reduction == "mean")
    shape = reduced.arguments[0].shape
    if not mean or len(shape) < 2:
        return None
    if latent.index not in calls.behind(reduced)[0]:
        return None
    value, weighted = value_of(reduced), value_of(term)
    if value is None or weighted is None or not value:
        return None
    return abs(weighted / value) / math.prod(shape) or None
