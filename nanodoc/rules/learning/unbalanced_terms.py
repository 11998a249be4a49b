"""## What it checks
The loss of a variational autoencoder: a reconstruction term that is a mean over all elements of the
batch, and a KL term that is a sum, of a latent that was drawn as `mu + std * noise`. The finding
says how many times as heavy as in the evidence lower bound the KL term is. Nothing is said below
500 times, and where the latent still tells its samples apart.

## Why it matters
The KL term is all that is learnt. The posterior collapses: each sample has the same latent, and the
decoder gives the mean of the data.

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
from dataclasses import dataclass

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import DRAWS, LAYERS, ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.course import SUPERVISED
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_of, learning_claim

_SUMS = ("add", "radd", "iadd", "sub", "rsub")
_SCALED = ("mul", "rmul", "div", "truediv", "neg")
_SHORTEST = 20  # steps: in fewer, a latent may not tell its samples apart yet
_ONE_HALF = 0.5
"""In front of the sum over 1 + log σ² − μ² − σ²."""


@dataclass(frozen=True, slots=True)
class _Latent:
    """`mu + std * noise`"""

    index: int
    mean: int
    """Position of the call that made mu."""
    spread: int
    """Of the call whose exp or softplus std is, or that made std."""


@rule(
    "ND637",
    "unbalanced-terms",
    "warning",
    "a mean reconstruction beside a summed KL term",
    needs=("inspection",),
    thresholds={
        "heavy": Threshold(500, "times its weight in the evidence lower bound: beta of β-VAE ends"),
        "collapsed": Threshold(1.0, "nats of a sample: a latent that tells samples apart has more"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    latent = _latent(calls) if calls is not None else None
    if calls is None or latent is None or len(evidence.losses) < _SHORTEST:
        return
    for position in calls.losses:
        terms = list(_terms(calls, calls.calls[position]))
        for kl_term, kl in terms:
            nats = _nats(calls, latent, kl_term, kl)
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
        title=f"the KL term is {times:.3g} times as heavy as the reconstruction allows",
        explanation=f"The reconstruction is a mean over {elements} elements{where}, and the KL "
        f"term a sum. What the latent tells of a sample has gone down to {nats:.3g} nats: the "
        "posterior has collapsed.",
        culprit=at_call(kl, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.75, 0.5 if nats < 0.1 else 0.0),  # the less is left, the surer
        notes=[("elements of the mean", elements), ("nats of a sample", f"{nats:.3g}")],
        fix="sum both terms, or divide the KL term by the number of elements of the mean",
    )


def _latent(calls: StepCalls) -> _Latent | None:
    for call in calls.calls:
        if call.name not in ("add", "radd") or len(call.arguments) != 2 or not call.requires_grad:
            continue
        for mean, noise in (call.arguments, call.arguments[::-1]):
            product, made = calls.maker(noise), calls.maker(mean)
            if product is None or made is None or product.name not in ("mul", "rmul"):
                continue
            spread = next((a for a in product.arguments if a.requires_grad), None)
            drawn = any(_is_drawn(calls, argument) for argument in product.arguments)
            origin = calls.origin(spread, elementwise=True) if spread is not None else None
            if drawn and mean.requires_grad and isinstance(origin, CallFacts):
                return _Latent(call.index, made.index, origin.index)
    return None


def _is_drawn(calls: StepCalls, argument: ArgumentFacts) -> bool:
    made = calls.origin(argument)
    return isinstance(made, CallFacts) and made.name.startswith(DRAWS) and not made.requires_grad


def _terms(calls: StepCalls, root: CallFacts) -> Iterator[tuple[CallFacts, CallFacts]]:
    """(a term of the sum that a loss is, the call that reduces it to a number)"""
    waiting = [root]
    while waiting:
        call = waiting.pop()
        made = [m for a in call.arguments if (m := calls.maker(a)) is not None and a.requires_grad]
        if call.name in _SUMS and call.shape == () and len(made) == len(call.arguments) == 2:
            waiting += made
            continue
        reduced = call
        while reduced.name in _SCALED or (reduced.same_values and reduced.name != "mean"):
            inner = next((a for a in reduced.arguments if a.requires_grad), None)
            before = calls.maker(inner) if inner is not None else None
            if before is None:
                break
            reduced = before
        if reduced.arguments and reduced.shape == ():
            yield call, reduced


def _nats(
    calls: StepCalls, latent: _Latent, term: CallFacts, reduced: CallFacts
) -> tuple[float, float] | None:
    """(the weight of a sample's KL divergence in the loss, the divergence in nats) of a term that
    is the KL divergence of the latent, summed over its dimensions."""
    if reduced.name not in ("sum", "mean") or not reduced.arguments[0].shape:
        return None
    behind, _ = calls.behind(reduced, stop=LAYERS)
    if not {latent.mean, latent.spread} <= behind or latent.index in behind:
        return None
    total, weighted = _value(reduced), _value(term)
    if total is None or weighted is None or not total:
        return None
    factor, samples = abs(weighted / total), reduced.arguments[0].shape[0]
    if reduced.name == "sum":
        half = _ONE_HALF if len(reduced.arguments[0].shape) > 1 else 1.0
        return factor / half, half * abs(total) / samples
    if len(reduced.arguments[0].shape) > 1 or not any(
        calls.calls[index].name == "sum" for index in behind
    ):
        return None  # a mean over the latent's dimensions, too
    return factor / samples, abs(total)


def _per_element(
    calls: StepCalls, latent: _Latent, term: CallFacts, reduced: CallFacts
) -> float | None:
    """The weight of an element's error in the loss, of a mean over all elements of what the latent
    is decoded to."""
    mean = reduced.name == "mean" or (reduced.name in SUPERVISED and reduced.reduction == "mean")
    shape = reduced.arguments[0].shape
    if not mean or len(shape) < 2:
        return None
    if latent.index not in calls.behind(reduced)[0]:
        return None
    value, weighted = _value(reduced), _value(term)
    if value is None or weighted is None or not value:
        return None
    return abs(weighted / value) / math.prod(shape) or None


def _value(call: CallFacts) -> float | None:
    value = call.notes.get("value")
    return value if value is not None and math.isfinite(value) else None
