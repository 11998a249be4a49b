"""## What it checks
The only loss of a step is one supervised loss (cross entropy, squared error, …) with a minus sign,
or the log-probabilities of labels without one (also a score minus the logsumexp of all, as in a
CRF), and a minimising optimizer holds the layer that predicts. Or it is the unchanged result of a
gpytorch objective, a log-likelihood. Or two supervised terms compare the same predictions with the
same targets, and one of the two has a minus sign and at least half of the other's weight. Other
sums of several terms and runs with several optimizers are not checked, because an adversarial term
has a minus sign on purpose; nor are terms with a different weight per sample, such as advantages.

## Why it matters
Training makes the predictions as wrong as possible. The loss still falls, even below zero.

## Example
    loss = F.log_softmax(model(x), 1)[rows, labels].mean()      # should be -F.log_softmax(…)

## Fix
    loss = F.cross_entropy(model(x), labels)

## Options
To unlearn or to attack, let the optimizer maximise: `torch.optim.SGD(…, maximize=True)`.

## See also
ND636 minimised-return
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import MinimisedLikelihood
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import LAYERS, LOG_PROBABILITIES, SCALINGS, SUPERVISED

_TURNING = ("sub", *SCALINGS)
_LONG = 10  # steps
_UNDOES = 0.5  # of the other term's slope: a little of a second loss is a correction of the first


@rule(
    "ND641",
    "maximised-loss",
    "critical",
    "a loss that training makes larger",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, calls = evidence.inspection, calls_of(evidence)
    if inspection is None or calls is None or len(calls.losses) != 1 or inspection.maximised:
        return
    if len(evidence.optimizer_sites) > 1:  # an adversary's turn
        return
    likelihood = inspection.likelihood
    if likelihood is not None:
        yield _less_likely(rule, evidence, likelihood)
        return
    if (apart := _pulled_both_ways(calls)) is not None:
        yield _against_each_other(rule, evidence, *apart)
        return
    found = _climbed(calls)
    if found is None or not _is_trained(calls, found[0], evidence):
        return
    call, at = found
    supervised = call.name in SUPERVISED
    fell = len(evidence.losses) >= _LONG and evidence.losses[-1] < evidence.losses[0]
    yield learning_claim(
        rule,
        location_key(at.site) or ("maximised",),
        title=f"training makes {call.name} larger: it minimises the negative"
        if supervised
        else "training makes the labels less probable: it minimises their log-probability",
        explanation=f"The only loss of the step is {call.name} "
        + ("times a negative number" if supervised else "of the labels, without a minus sign")
        + ", and the optimizer, which minimises the loss, holds the layer that predicts.",
        culprit=at_call(at, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.85, 0.4 if fell else 0.0),
        notes=[
            ("loss at the start", f"{evidence.losses[0]:.3g}" if evidence.losses else None),
            ("loss at the end", f"{evidence.losses[-1]:.3g}" if evidence.losses else None),
        ],
        fix="remove the minus sign" if supervised else "give the loss a minus sign",
        standing=WIRED,
    )


def _less_likely(rule: Rule, evidence: Evidence, found: MinimisedLikelihood) -> Claim:
    losses = evidence.losses
    return learning_claim(
        rule,
        location_key(found.line) or ("maximised",),
        title="training makes the data less probable: it minimises their log-likelihood",
        explanation=f"The only loss of the step is what {found.objective} returns, a "
        "log-likelihood or a lower bound of one, without a minus sign.",
        culprit=Culprit(kind="op", location=found.line),
        step=len(losses) - 1,
        weight=confidence(0.85, 0.4 if len(losses) >= _LONG and losses[-1] < losses[0] else 0.0),
        notes=[("objective", found.objective)],
        fix="give the loss a minus sign",
        standing=WIRED,
    )


def _climbed(calls: StepCalls) -> tuple[CallFacts, CallFacts] | None:
    """(the loss function that gets worse, the last call that may have turned its sign); None where
    the loss is made of several terms."""
    root = call = calls.calls[calls.losses[0]]
    turns: CallFacts | None = None
    while call.name not in (*SUPERVISED, *LOG_PROBABILITIES):
        normaliser = _normaliser(calls, call)
        if normaliser is not None:
            wrong = (normaliser.notes.slope or 0.0) < 0
            return (normaliser, turns or root) if wrong else None
        inner = [a for a in call.arguments if a.requires_grad]
        before = calls.maker(inner[0]) if len(inner) == 1 else None
        if before is None:
            return None
        turns = turns or (call if call.name in _TURNING else None)
        call = before
    slope = call.notes.slope or 0.0
    if call.name in SUPERVISED:
        return (call, turns or call) if slope < 0 else None
    return (call, turns or root) if slope > 0 else None


def _pulled_both_ways(calls: StepCalls) -> tuple[CallFacts, CallFacts, CallFacts] | None:
    """(a supervised term that gets worse, one that gets better, of the same predictions and
    targets, the call that turned the first one's sign)"""
    reaching = calls.reaching_the_loss()
    terms = [c for c in calls.calls if c.name in SUPERVISED and c.index in reaching]
    terms = [c for c in terms if len(c.arguments) > 1 and c.notes.slope]
    for worse in (c for c in terms if (c.notes.slope or 0.0) < 0):
        for better in (c for c in terms if (c.notes.slope or 0.0) > 0):
            pairs = zip(worse.arguments[:2], better.arguments[:2], strict=True)
            alike = all(_is_same(calls, one, other) for one, other in pairs)
            if alike and _share(better, worse) >= _UNDOES:
                return worse, better, _turned(calls, worse, reaching)
    return None


def _share(better: CallFacts, worse: CallFacts) -> float:
    """How much of what the one term teaches the other takes back, at most 1."""
    return min(1.0, -(worse.notes.slope or 0.0) / (better.notes.slope or 1.0))


def _is_same(calls: StepCalls, one: ArgumentFacts, other: ArgumentFacts) -> bool:
    """Both hold the values of one tensor, in whatever shape."""
    first, second = calls.origin(one), calls.origin(other)
    if isinstance(first, CallFacts) or isinstance(second, CallFacts):
        return first is second
    return first.leaf is not None and first.leaf == second.leaf


def _turned(calls: StepCalls, term: CallFacts, reaching: Container[int]) -> CallFacts:
    """The first call that is made of the term and that the loss grows with."""
    for call in calls.calls[term.index + 1 :]:
        made_of = term.index in calls.behind(call)[0]
        if call.index in reaching and made_of and (call.notes.slope or 0.0) > 0:
            return call
    return term


def _against_each_other(
    rule: Rule, evidence: Evidence, worse: CallFacts, better: CallFacts, turned: CallFacts
) -> Claim:
    return learning_claim(
        rule,
        location_key(turned.site) or ("maximised",),
        title=f"one term makes {better.name} smaller, and another makes {worse.name} of the same "
        "predictions and targets larger",
        explanation="Both terms compare the same predictions with the same targets, and one of "
        "them has a minus sign: what one term teaches, the other undoes.",
        culprit=at_call(turned, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.6, 0.6 * _share(better, worse)),
        notes=[("slopes", f"{better.notes.slope:.3g}, {worse.notes.slope:.3g}")],
        fix="remove the minus sign",
        standing=WIRED,
    )


def _normaliser(calls: StepCalls, call: CallFacts) -> CallFacts | None:
    """The logsumexp that a score is subtracted by, which is none itself: a log-likelihood."""
    if call.name != "sub" or len(call.arguments) < 2:
        return None
    score, found = (calls.origin(argument) for argument in call.arguments[:2])
    if not isinstance(found, CallFacts) or found.name != "logsumexp":
        return None
    learns = all(argument.requires_grad for argument in call.arguments[:2])
    alike = isinstance(score, CallFacts) and score.name == "logsumexp"
    return found if learns and not alike else None


def _is_trained(calls: StepCalls, loss: CallFacts, evidence: Evidence) -> bool:
    """An optimizer holds a parameter of the last layer before the loss."""
    behind, _ = calls.behind(loss.arguments[0])
    layers = [calls.calls[index] for index in sorted(behind) if calls.calls[index].name in LAYERS]
    with_parameters = [c for c in layers if any(a.parameter for a in c.arguments)]
    if not with_parameters:
        return False
    missing = {p.name for p in evidence.ownership.missing} if evidence.ownership else set()
    return any(
        a.requires_grad and a.parameter is not None and a.parameter not in missing
        for a in with_parameters[-1].arguments
    )
