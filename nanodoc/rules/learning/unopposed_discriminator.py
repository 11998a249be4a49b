"""## What it checks
Steps in which a network scores the output of a second one, once detached and once not, as a
discriminator scores a generator: with a binary cross entropy or a squared error against one
constant, or with the mean of its scores. The two losses must not push the scores the same way.

## Why it matters
The generator is trained to be detected. Both losses fall, and the samples get worse.

## Example
    loss_d = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
    loss_g = criterion(netD(fake), zeros)

## Fix
    loss_g = criterion(netD(fake), ones)

## See also
ND641 maximised-loss; Goodfellow et al. 2014, Generative adversarial networks, algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import BINARIES, LAYERS

_ONE_HALF = 0.5


@dataclass(frozen=True, slots=True)
class _Judgement:
    """A loss of what a network says."""

    call: CallFacts
    judge: str
    """The parameter of the network's last layer."""
    wanted: float
    """The constant that its answers are compared with; of a mean, the way they are moved."""
    upwards: bool
    learns: frozenset[str]
    """The parameters that this loss reaches."""
    generated: bool
    """What it judges was made by other parameters, which this loss does not reach."""


@rule(
    "ND650",
    "unopposed-discriminator",
    "critical",
    "a generator that learns to be detected",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, calls = evidence.inspection, calls_of(evidence)
    if inspection is None or calls is None or inspection.maximised:
        return
    judgements = list(_judgements(calls))
    for own in judgements:
        for other in judgements:
            if not own.generated or own.judge != other.judge or own.call.name != other.call.name:
                continue
            if not own.learns < other.learns or not _alike(own, other):
                continue
            yield _claim(rule, evidence, own, other)
            return


def _claim(rule: Rule, evidence: Evidence, own: _Judgement, other: _Judgement) -> Claim:
    way = "up" if other.upwards else "down"
    against = own.call.name in BINARIES
    beside = own.call.site
    return learning_claim(
        rule,
        location_key(other.call.site) or ("generator", "sign"),
        title=f"the generator's loss pushes the score of its outputs {way}, as the "
        "discriminator's does",
        explanation="The generated output is scored twice: detached, to train the discriminator, "
        "and not detached, to train the generator. "
        + (f"Both are compared with {other.wanted:.3g}. " if against else "")
        + "So the generator learns to be detected, and nothing opposes the discriminator.",
        culprit=at_call(other.call, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.8, 0.4 if against else 0.0),
        notes=[("the discriminator's loss", beside.place if beside is not None else None)],
        fix="compare the score of the generator's outputs with the label of real samples"
        if against
        else "flip the sign of the generator's loss",
        standing=WIRED,
    )


def _alike(own: _Judgement, other: _Judgement) -> bool:
    """They want the same of the judging network."""
    if own.upwards != other.upwards:
        return False
    return own.call.name in (*BINARIES, "mean") or own.wanted == other.wanted


def _judgements(calls: StepCalls) -> Iterator[_Judgement]:
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        slope = call.notes.slope
        if call.index not in reaching or not slope or not call.arguments:
            continue
        wanted = _wanted(call)
        last = _last_layer(calls, call.arguments[0])
        judge = _weight(last) if last is not None else None
        if wanted is None or last is None or judge is None:
            continue
        if call.name == "mean" and not _is_said_by(calls, call.arguments[0], last):
            continue
        upwards = slope < 0 if call.name == "mean" else (wanted >= _ONE_HALF) == (slope > 0)
        learns, others = _parameters(calls, call)
        yield _Judgement(call, judge, wanted, upwards, frozenset(learns), bool(others - learns))


def _wanted(call: CallFacts) -> float | None:
    """The one constant of all samples."""
    if call.name == "mean":
        return 0.0
    if call.name not in (*BINARIES, "mse_loss") or call.arguments[-1].requires_grad:
        return None
    targets = call.notes.loss.targets
    return targets.low if targets is not None and targets.low == targets.high else None


def _last_layer(calls: StepCalls, argument: ArgumentFacts) -> CallFacts | None:
    """Of the calls that an output went through, one by one."""
    made = calls.maker(argument)
    while made is not None and made.name not in LAYERS:
        learning = [a for a in made.arguments if a.requires_grad]
        made = calls.maker(learning[0]) if len(learning) == 1 else None
    return made


def _is_said_by(calls: StepCalls, argument: ArgumentFacts, last: CallFacts) -> bool:
    """It is the layer's output as it is."""
    made = calls.origin(argument)
    return isinstance(made, CallFacts) and made.index == last.index


def _weight(layer: CallFacts) -> str | None:
    names = (argument.parameter for argument in layer.arguments)
    return next((name for name in names if name is not None), None)


def _parameters(calls: StepCalls, call: CallFacts) -> tuple[set[str], set[str]]:
    """(the parameters that learn from a call, all that it is made of)"""
    found: tuple[set[str], set[str]] = (set(), set())
    for learning, names in zip((True, False), found, strict=True):
        seen: set[int] = set()
        waiting = list(call.arguments)
        while waiting:
            argument = waiting.pop()
            if learning and not argument.requires_grad:
                continue
            if argument.parameter is not None:
                names.add(argument.parameter)
            elif argument.made_by is not None and argument.made_by not in seen:
                seen.add(argument.made_by)
                waiting += calls.calls[argument.made_by].arguments
    return found
