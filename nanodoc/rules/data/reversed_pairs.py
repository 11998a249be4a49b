"""## What it checks
A contrastive loss over pairs: a distance of two outputs, weighted by the label or by 1 − label,
plus a margin term weighted by the other of the two; or cosine_embedding_loss and
hinge_embedding_loss, which pull together the pairs with label 1; or triplet_margin_loss, which
pulls its second input to the first. Reported if the pairs that it pulls together are farther apart
than those that it pushes apart, in the Euclidean distance of their inputs in the last batches, by
at least six standard errors (Welch's t).

## Why it matters
Pairs that belong together look similar. If the data set gives them the opposite label, the network
learns similarity the wrong way round, and the loss falls as usual.

## Example
    same = labels[i] == labels[j]
    return images[i], images[j], float(same)      # the loss pulls together the pairs with 0

## Fix
    return images[i], images[j], float(not same)

## See also
ND154 swapped-pairs, ND141 misplaced-positives
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import PairDistances
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import CLAMPS, DISTANCES, LAYERS, NORMS, OF_TRIPLETS, SIMILARITIES

_PULLS_ONES = ("cosine_embedding_loss", "hinge_embedding_loss")
_RECTIFIES = (*CLAMPS, "relu", "max", "maximum", "threshold")
_ROW_DISTANCES = (*DISTANCES, *NORMS)


@rule(
    "ND156",
    "reversed-pairs",
    "critical",
    "a contrastive loss that pulls together the pairs that are farther apart",
    needs=("inspection", "data"),
    thresholds={"apart": Threshold(6.0, "standard errors between the two means")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    measured = {pairs.path: pairs for pairs in (evidence.data.pairs if evidence.data else ())}
    if evidence.data is not None and evidence.data.triplets:
        yield from _of_triplets(rule, evidence, check.limit(evidence, "apart"))
    if not measured:
        return
    pushed: dict[str, tuple[bool, CallFacts]] = {}
    pulled: dict[str, bool] = {}
    for calls, call in calls_into_the_loss(evidence):
        if call.name in _PULLS_ONES:
            path = calls.leaf(call.arguments[-1])
            if path in measured and _is_wrong(check.limit(evidence, "apart"), measured[path], True):
                yield _claim(rule, evidence, call, measured[path], ones=True)
                return
        weighed = _weighed(calls, call) if call.name == "mul" else None
        if weighed is None:
            continue
        path, ones, term = weighed
        kind = _kind(calls, term)
        if kind == "push":
            pushed[path] = ones, call
        elif kind == "pull":
            pulled[path] = ones
    for path, (ones, call) in pushed.items():
        if path not in measured or pulled.get(path, ones) == ones:
            continue
        if _is_wrong(check.limit(evidence, "apart"), measured[path], not ones):
            yield _claim(rule, evidence, call, measured[path], ones=not ones)
            return


def _of_triplets(rule: Rule, evidence: Evidence, least: float) -> Iterable[Claim]:
    """A triplet loss whose positive is farther from the anchor than its negative."""
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in OF_TRIPLETS or len(call.arguments) < 3:
            continue
        anchor, positive, negative = (_input_of(calls, a) for a in call.arguments[:3])
        for seen in evidence.data.triplets if evidence.data is not None else ():
            turned = seen.others == (negative, positive)
            if seen.anchor != anchor or not (turned or seen.others == (positive, negative)):
                continue
            apart, means = (-1 if turned else 1) * seen.apart, seen.means[:: -1 if turned else 1]
            if apart < least:
                continue
            yield learning_claim(
                rule,
                location_key(call.site) or ("triplets", call.index),
                title="the triplet loss pulls the farther input to the anchor",
                explanation=f"Over {seen.triplets} triplets the positive, {positive}, is "
                f"{means[0]:.3g} away from the anchor {anchor} on average, and the negative, "
                f"{negative}, {means[1]:.3g}: the two are swapped.",
                culprit=at_call(call, evidence),
                step=len(evidence.losses) - 1,
                weight=confidence(0.7, 0.6 if apart > 2 * least else 0.3),
                notes=[
                    ("distance of the positives", means[0]),
                    ("of the negatives", means[1]),
                    ("standard errors between them", apart),
                ],
                fix="anchor, positive, negative",
                standing=WIRED,
            )
            return


def _input_of(calls: StepCalls, argument: ArgumentFacts) -> str | None:
    """The only part of the batch that it is made of."""
    made = calls.origin(argument)
    found = {leaf.leaf for leaf in calls.behind(made)[1] if leaf.of_batch}
    return found.pop() if len(found) == 1 else None


def _is_wrong(least: float, pairs: PairDistances, ones: bool) -> bool:
    """The pairs that are pulled together, those with the label 1 or the others, are farther
    apart."""
    return (pairs.apart if ones else -pairs.apart) >= least


def _weighed(calls: StepCalls, call: CallFacts) -> tuple[str, bool, ArgumentFacts] | None:
    """(the label's part of the batch, whether the product keeps the pairs with label 1, what is
    weighed) of a product with a label, or with 1 − label."""
    if len(call.arguments) != 2:
        return None
    term = next((argument for argument in call.arguments if argument.requires_grad), None)
    label = next((argument for argument in call.arguments if not argument.requires_grad), None)
    if term is None or label is None:
        return None
    made = calls.origin(label)
    if isinstance(made, ArgumentFacts):
        return (made.leaf, True, term) if made.leaf is not None else None
    if made.notes.number.taken_from != 1 or not made.arguments:
        return None
    path = calls.leaf(made.arguments[0])
    return (path, False, term) if path is not None else None


def _kind(calls: StepCalls, term: ArgumentFacts) -> str | None:
    """ "pull" of a distance, "push" of what is left of a margin; None of anything else."""
    made = calls.maker(term)
    if made is None:
        return None
    behind, _ = calls.behind(made, stop=LAYERS)
    steps = [calls.calls[index] for index in behind]
    names = {step.name for step in steps}
    if not names & {*_ROW_DISTANCES} or names & {*SIMILARITIES}:
        return None
    margin = any((step.notes.number.taken_from or 0) > 0 and step.requires_grad for step in steps)
    rectified = bool(names & {*_RECTIFIES} - _inside(calls, steps))
    if margin and rectified:
        return "push"
    return None if margin or rectified else "pull"


def _inside(calls: StepCalls, steps: list[CallFacts]) -> set[str]:
    """Rectifiers between the layers and the distance: activations of the network."""
    distances = [step for step in steps if step.name in _ROW_DISTANCES]
    behind = {index for step in distances for index in calls.behind(step, stop=LAYERS)[0]}
    inside = {step.name for step in steps if step.index in behind}
    outside = {step.name for step in steps if step.index not in behind}
    return inside - outside


def _claim(
    rule: Rule, evidence: Evidence, call: CallFacts, pairs: PairDistances, *, ones: bool
) -> Claim:
    near, far = (pairs.high, pairs.low) if ones else (pairs.low, pairs.high)
    first, second = pairs.inputs
    return learning_claim(
        rule,
        location_key(call.site) or ("pairs", pairs.path),
        title=f"the loss pulls together the pairs with {'label 1' if ones else 'label 0'}, "
        "which are farther apart than the others",
        explanation=f"The distance between {first} and {second} is {near:.3g} on average in the "
        f"pairs that the loss pulls together, and {far:.3g} in those that it pushes apart, "
        f"over {pairs.pairs} pairs: the two labels in {pairs.path} are the reverse of what "
        "the loss expects.",
        culprit=at_call(call, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(
            0.7, 0.6 if abs(pairs.apart) > 2 * check.limit(evidence, "apart") else 0.3
        ),
        notes=[
            ("distance of the pairs pulled together", near),
            ("of those pushed apart", far),
            ("standard errors between them", abs(pairs.apart)),
        ],
        fix="give pairs that belong together the label that the loss pulls together",
        standing=WIRED,
    )
