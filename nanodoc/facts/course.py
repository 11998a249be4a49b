"""How a run's loss went, start to end, and whether it is one that has a reason to fall. Pure
arithmetic on evidence; without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loss_terms import terms_of
from nanodoc.facts.source import SourceSpan
from nanodoc.vocabulary.calls import (
    ADDITIONS,
    CLASSIFICATION,
    FACTORS,
    FRESH,
    LAYERS,
    LOG_PROBABILITIES,
    MASKING,
    REDUCTIONS,
    RESHAPING,
    SIZES,
    SUPERVISED,
)

_FEWEST = 4  # steps
_ROSE = 2.0  # RULES, ND606: a loss of twice its start
_ROSE_SOON = 5.0  # in the first steps of a run, which may be rough and come back
_ROUGH = 30  # steps
_SURELY = 0.6  # of the late losses: single batches may differ
_FELL = 100.0  # times the start
_GOES_ON = 1.02  # times the tenth of the run before
_GUESSING = 3.0  # times ln C: no model that is only bad is so sure of the wrong class

_ARITHMETIC = frozenset(
    (
        *ADDITIONS,
        *RESHAPING,
        *REDUCTIONS,
        "neg",
        "div",
        "squeeze",
        "unsqueeze",
        "getitem",
        "sqrt",
        "softplus",
        "float",
        "masked_select",
        "stack",
        "nanmean",
    )
)
_SCORES = frozenset((*LOG_PROBABILITIES, "logsumexp", "log", "exp", "max", "amax", "softplus"))
_OVERWRITING = frozenset((*FRESH, "fill", "zero", "argmax"))


@dataclass(frozen=True, slots=True)
class Rise:
    """A loss that ended well above where it began: its first value, or the median of its first
    steps where that is lower, and the median of its last steps."""

    start: float
    end: float

    @property
    def factor(self) -> float:
        """End over start."""
        return self.end / self.start


def rise(losses: Sequence[float]) -> Rise | None:
    """None for a loss that came back, that began at zero or below, or of too few steps."""
    steps = len(losses)
    if steps < _FEWEST or not all(map(math.isfinite, losses)):
        return None
    early = losses[: min(5, max(1, steps // 5))]
    late = losses[-min(10, max(2, steps // 4)) :]
    found = Rise(min(losses[0], statistics.median(early)), statistics.median(late))
    least = _ROSE if steps >= _ROUGH else _ROSE_SOON
    if found.start <= 0 or found.end <= least * found.start:
        return None
    above = sum(loss > least * found.start for loss in late)
    return found if above >= _SURELY * len(late) else None


def falls_further(losses: Sequence[float]) -> bool:
    """A long run whose loss is below zero by a hundred times its start and more, and falls as fast
    in its second half as in the first: a likelihood levels off."""
    if len(losses) < _ROUGH or not all(map(math.isfinite, losses)):
        return False
    tenth = max(len(losses) // 10, 3)
    half = len(losses) // 2
    late, before = losses[-tenth:], losses[-2 * tenth : -tenth]
    middle = statistics.median(losses[half : half + tenth])
    end = statistics.median(late)
    goes_on = end < 1.5 * min(middle, 0.0) and end < _GOES_ON * min(statistics.median(before), 0.0)
    return goes_on and end < -_FELL * max(abs(losses[0]), 1.0)


def is_weighed(calls: StepCalls) -> bool:
    """Each sample's part of the loss is multiplied by a number that the model neither computes nor
    reads: a reward or an advantage, whose size is no business of the loss."""
    return _weighs(calls, [calls.calls[index] for index in calls.losses])


def _weighs(calls: StepCalls, waiting: list[CallFacts]) -> bool:
    seen: set[int] = set()
    while waiting:
        call = waiting.pop()
        if call.index in seen or call.name in LAYERS:
            continue
        seen.add(call.index)
        learns = [argument for argument in call.arguments if argument.requires_grad]
        numbers = [a for a in call.arguments if a.dtype.startswith("float") and a.shape]
        if call.name in FACTORS and learns and len(numbers) > len(learns):
            given = [a for a in numbers if not a.requires_grad]
            if not all(_is_read(calls, argument) for argument in given):
                return True
        waiting += [made for a in learns if (made := calls.maker(a)) is not None]
    return False


def _is_read(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """A layer is given it, or what it is made of: an input, which a flow scales and shifts. What a
    network says of inputs is none, as the values that an advantage is made of."""
    own, leaves = _numbers_behind(calls, argument)
    if any(calls.calls[index].name in LAYERS for index in own):
        return False
    for layer in calls.calls:
        if layer.name in LAYERS and layer.arguments:
            read, sources = _numbers_behind(calls, layer.arguments[0])
            if own & read or leaves & sources:
                return True
    return False


def _numbers_behind(calls: StepCalls, argument: ArgumentFacts) -> tuple[set[int], set[str]]:
    """(the calls that made its numbers, the names of what no call made): not what picked them, as
    an index that takes the same rows of several tensors."""
    made, leaves, waiting = set[int](), set[str](), [argument]
    while waiting:
        one = waiting.pop()
        if not one.dtype.startswith(("float", "bfloat")):
            continue
        if one.made_by is None:
            leaves |= {one.leaf} if one.leaf is not None else set()
        elif one.made_by not in made:
            made.add(one.made_by)
            waiting += calls.calls[one.made_by].arguments
    return made, leaves


def lowest_term(calls: StepCalls) -> CallFacts | None:
    """The term of the loss that is farthest below zero, through sums, differences and numbers.
    Where its sign is turned on the way, the call that turns it: the one that subtracts it."""
    if not calls.losses:
        return None
    call = calls.calls[calls.losses[-1]]
    while call.name in (*ADDITIONS, *FACTORS, "neg"):
        made = [calls.maker(a) for a in call.arguments if a.requires_grad and not a.shape]
        terms = [t for t in made if t is not None and math.isfinite(t.notes.value or math.nan)]
        if not terms:
            break
        term = max(terms, key=lambda term: abs(term.notes.value or 0.0))
        if (call.notes.value or 0.0) < 0 < (term.notes.value or 0.0):
            break
        call = term
    return call


def has_fixed_targets(evidence: Evidence) -> bool:
    """The loss holds one of torch's losses against targets that no network computes, so that it has
    a reason to fall, and no other optimizer works against it. Not the error of a critic: beside it
    stands a term that weighs what a policy did, and changes what the critic is asked to say."""
    calls = _calls(evidence)
    if calls is None or len(evidence.optimizer_sites) > 1:
        return False
    losses = _losses(calls)
    if not losses:
        return _by_hand(calls)
    return all(is_fixed(calls, loss) for loss in losses) and not _is_weighed_beside(calls)


def _is_weighed_beside(calls: StepCalls) -> bool:
    """A term that none of torch's losses has a part in is weighed by numbers of each sample."""
    for index in calls.losses:
        for term in terms_of(calls, calls.calls[index]):
            made_of = (calls.calls[one].name for one in calls.behind(term.call)[0])
            if set(SUPERVISED).isdisjoint(made_of) and _weighs(calls, [term.call]):
                return True
    return False


def is_one_supervised_loss(evidence: Evidence) -> bool:
    """`has_fixed_targets`, and nothing else is added to it: a critic's error stands beside the
    policy's."""
    calls = _calls(evidence)
    if calls is None or len(calls.losses) != 1 or not has_fixed_targets(evidence):
        return False
    losses, waiting = _losses(calls), [calls.calls[calls.losses[0]]]
    if not losses:
        return True  # all of it is a distance, written by hand
    while waiting:
        call = waiting.pop()
        if call.name in SUPERVISED:
            continue
        inner = [made for a in call.arguments if (made := calls.maker(a)) is not None]
        if call.name not in _ARITHMETIC | {"mul"} or not inner:
            return False
        waiting += inner
    return True


def _by_hand(calls: StepCalls) -> bool:
    """The only loss, or that of each micro-batch, is made of a distance between what a network
    computes and what it doesn't, or of log-probabilities picked by labels; nothing else weighs its
    terms, as advantages do."""
    losses = [calls.calls[index] for index in calls.losses]
    if len({(loss.name, loss.site) for loss in losses}) != 1:
        return False
    told, waiting, seen = False, losses[-1:], set()
    while waiting:
        call = waiting.pop()
        if call.index in seen:
            continue
        seen.add(call.index)
        inner = [made for a in call.arguments if (made := calls.maker(a)) is not None]
        scaled = call.name in FACTORS and all(
            _is_scale(calls, argument) for argument in call.arguments[1:]
        )
        if call.name in MASKING:
            learns = (calls.maker(a) for a in call.arguments if a.requires_grad)
            waiting += [made for made in learns if made is not None]
        elif scaled:
            waiting += [made for made in inner if _by_network(calls, call.arguments[0])][:1]
        elif call.name in SIZES:
            if not any(_is_distance(calls, made) for made in inner):
                return False
            told = True
        elif call.name == "gather":
            told = True
        elif call.name == "logsumexp":  # of what scores are above the one of the label
            behind, _ = calls.behind(call, stop=LAYERS)
            told = told or any(calls.calls[index].name == "gather" for index in behind)
        elif call.name in _ARITHMETIC:
            waiting += inner
        elif call.name not in _SCORES:
            return False
    return told


def _is_scale(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """A number, or a mask; values of a policy's steps are neither."""
    mask = argument.dtype == "bool" or argument.dtype.startswith("int")
    return (mask or not argument.shape) and not _by_network(calls, argument)


def _is_distance(calls: StepCalls, call: CallFacts) -> bool:
    if call.name != "sub" or len(call.arguments) < 2:
        return False
    sides = [_by_network(calls, side) for side in call.arguments[:2]]
    return sides[0] != sides[1]


def worse_than_guessing(evidence: Evidence, end: float) -> float | None:
    """ln C, where the loss is a mean cross entropy among C classes that ends far above it."""
    found = mean_cross_entropy(evidence)
    chance = math.log(found[1]) if found is not None else 0.0
    return chance if chance and end > _GUESSING * chance else None


def mean_cross_entropy(evidence: Evidence) -> tuple[CallFacts, int] | None:
    """(the call that makes the only loss, its classes); None where it is something else."""
    calls = _calls(evidence)
    if calls is None or len(calls.losses) != 1:
        return None
    loss = calls.calls[calls.losses[0]]
    if loss.name not in CLASSIFICATION or loss.reduction != "mean":
        return None
    return (loss, loss.classes) if loss.classes > 1 else None


def update_by_hand(calls: StepCalls) -> SourceSpan | None:
    """The line that moves weights, in a step without an optimizer."""
    reaching = calls.reaching_the_loss()
    last = max(calls.losses, default=-1)
    moving = [
        call
        for call in calls.calls[last + 1 :]
        if call.index not in reaching
        and call.name in (*ADDITIONS, "copy", "addcmul", "addcdiv")
        and call.arguments
        and _is_parameter(calls, call.arguments[0])
        and call.site is not None
    ]
    return moving[-1].site if moving else None


def _is_parameter(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """A parameter, or its `.data`."""
    made = calls.maker(argument)
    if made is not None and made.name == "get" and made.arguments:
        argument = made.arguments[0]
    return argument.parameter is not None


def _calls(evidence: Evidence) -> StepCalls | None:
    return evidence.inspection.calls if evidence.inspection is not None else None


def _losses(calls: StepCalls) -> list[CallFacts]:
    reaching = calls.reaching_the_loss()
    return [
        call
        for call in calls.calls
        if call.index in reaching and call.name in SUPERVISED and len(call.arguments) > 1
    ]


def is_fixed(calls: StepCalls, loss: CallFacts) -> bool:
    """One side of it is not computed by a network: labels, or numbers that the batch brings."""
    return any(not _by_network(calls, side) for side in loss.arguments[:2])


def _by_network(calls: StepCalls, argument: ArgumentFacts) -> bool:
    seen: set[int] = set()
    waiting = [argument]
    while waiting:
        each = waiting.pop()
        if each.parameter or each.requires_grad:
            return True
        made = calls.maker(each)
        if made is None or made.index in seen:
            continue
        seen.add(made.index)
        if made.name in LAYERS:
            return True
        if made.name not in _OVERWRITING:
            waiting += made.arguments
    return False
