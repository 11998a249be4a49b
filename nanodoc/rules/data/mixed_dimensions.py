"""## What it checks
Calls of view and reshape on the way to the loss whose shapes have the same sizes in a different
order: no dimension is moved, so all values are mixed. Examples: (N, T, F) as (N, F, T); (N, H, W,
C) as (N, C, H, W); (N, C, H, W) as (N, H·W, C) and back; (N, T, E) as (N, heads, T, E/heads), and
the reverse for attention's output; scores (N, C, H, W) as (N·H·W, C) for a loss; the last states
(layers, N, H) of a recurrent layer as (N, layers·H). Also a sample of the data set, drawn again
line by line: an image (H, W, C) as (C, H, W).

## Why it matters
The shapes fit, nothing fails, and the model sees noise.

## Example
    x = x.view(n, channels, time)       # x is (n, time, channels)

## Fix
    x = x.transpose(1, 2)

## Options
Dimensions of equal sizes can't be told apart. If three sizes are only reordered and one is a
multiple of a second, sizes that are computed in the call (`t // 2, f * 2`) are taken as intended.

## See also
ND125 misaligned-targets, ND513 cross-sample-leak
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.items import MixedItem
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import location_key
from nanodoc.rules.data.batch_claims import item_claim
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim, loss_call
from nanodoc.vocabulary.calls import (
    CLASSIFICATION,
    MATRIX_PRODUCTS,
    RECURRENT,
    RESHAPING,
    TRANSPOSES,
)

_PADDING = ("pad", "cat")
_OF_ATTENTION = (*MATRIX_PRODUCTS, "scaled_dot_product_attention", "dropout")

Shape = tuple[int, ...]


@rule(
    "ND121",
    "mixed-dimensions",
    "critical",
    "view or reshape instead of moving a dimension: all values are mixed",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.items is not None and evidence.items.mixed is not None:
        yield _of_item(rule, evidence, evidence.items.mixed)
        return
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index not in reaching or not call.arguments:
            continue
        if call.name in RESHAPING:
            given = call.arguments[0].shape
            order = _order(calls, call, given, call.shape)
            if order is not None:
                yield _claim(
                    rule,
                    evidence,
                    call,
                    title=f"{call.name} turns {given} into {call.shape} without moving a dimension",
                    explanation="It reads the values in memory order, so each row of the result "
                    f"mixes several rows of the input. {order[0]}." + _leaks(evidence, call),
                    fix=order[1],
                )
                return


def _claim(
    rule: Rule, evidence: Evidence, call: CallFacts, *, title: str, explanation: str, fix: str
) -> Claim:
    sizes = {size for size in call.shape if size > 1}
    return learning_claim(
        rule,
        location_key(call.site) or ("mixed", call.index),
        title=title,
        explanation=explanation,
        culprit=at_call(call, evidence),
        step=0,
        # the more different sizes come out in another order, the less is it chance
        weight=confidence(0.7, 0.5 if len(sizes) > 2 else 0.2),
        fix=fix,
        standing=WIRED,
    )


def _leaks(evidence: Evidence, call: CallFacts) -> str:
    """What it does to a model of the next token, where that was measured."""
    sequence = evidence.inspection.sequence if evidence.inspection is not None else None
    mixing = sequence.mixing if sequence is not None else None
    if mixing is None or mixing.at != call.site:
        return ""
    return " So the model sees the token that it should predict, whatever its attention masks."


def _of_item(rule: Rule, evidence: Evidence, item: MixedItem) -> Claim:
    return item_claim(
        rule,
        evidence,
        item.index,
        item.part,
        item.line,
        title=f"an image {item.given} becomes {item.made} without moving its channels",
        explanation=f"The values of sample {item.index} are in the same order before and after "
        "this line, so each channel of the result mixes all channels.",
        weight=confidence(0.8, 0.5),  # value by value
        notes=[("before", item.given), ("after", item.made)],
        fix="x.permute(2, 0, 1), or np.transpose(x, (2, 0, 1))",
    )


def _order(calls: StepCalls, call: CallFacts, given: Shape, made: Shape) -> tuple[str, str] | None:
    """(what the shapes mean, what was meant) of a call that mixes; None where it does not, or where
    that is not certain."""
    if not given or given[0] < 2 or given == made:
        return None
    if len(given) == len(made) == 4 and (channels := _pictures(given, made)) is not None:
        place = "first" if made[1] == channels else "last"
        return f"This does not move the {channels} channels {place}", "use permute instead"
    if len(given) == len(made):
        if not _swapped(given, made) or _regroups(calls, call, given, made):
            return None
        return (
            "The two shapes have the same sizes in a different order",
            "use transpose or permute instead",
        )
    if len(made) == 2 and _scatters_classes(calls, call, given, made):
        return (
            f"The scores of the {made[1]} classes of one position are not adjacent",
            f"x.movedim(1, -1).reshape(-1, {made[1]}), or cross_entropy on x as it is",
        )
    origin = calls.origin(call.arguments[0])
    name = origin.name if isinstance(origin, CallFacts) else ""
    if len(given) == 3 and name in RECURRENT and made == (given[1], given[0] * given[2]):
        apart = 1 != given[0] != given[1]
        told = "The states of one sample are not adjacent", "h.transpose(0, 1).flatten(1)"
        return told if apart else None
    if given[0] != made[0] or given[-1] == made[-1]:  # the last dimension may be as it was
        return None
    if len(given) == 4 and len(made) == 3:
        return _joined(given, made, attention=name in _OF_ATTENTION)
    return _split(given, made) if len(given) == 3 and len(made) == 4 else None


def _scatters_classes(calls: StepCalls, call: CallFacts, given: Shape, made: Shape) -> bool:
    """Scores (N, C, ...) that are made (places, C) for a loss without moving the classes last."""
    classes = made[1]
    if len(given) < 3 or given[1] != classes or classes in (1, given[-1]):
        return False
    loss = loss_call(calls, CLASSIFICATION)
    way = calls.path(loss.arguments[0]) if loss is not None and loss.arguments else ()
    return math.prod(given[2:]) > 1 and any(step.index == call.index for step in way)


def _pictures(given: Shape, made: Shape) -> int | None:
    """The channels of pictures (N, H, W, C) that are made (N, C, H, W), or the way back."""
    n, first, second, third = given
    if made == (n, third, first, second) and 1 != third != first:
        return third
    return first if made == (n, second, third, first) and 1 != first != third else None


def _joined(given: Shape, made: Shape, *, attention: bool) -> tuple[str, str] | None:
    n, first, second, third = given
    if made == (n, second * third, first) and first not in (1, second * third):
        return (
            f"This does not move the {first} channels last",
            "x.flatten(2).transpose(1, 2), or permute before reshape",
        )
    if attention and made == (n, second, first * third) and 1 != first != second:
        return f"This does not join the {first} heads", "x.transpose(1, 2).reshape(...)"
    return None


def _split(given: Shape, made: Shape) -> tuple[str, str] | None:
    _, second, third = given
    if made[1] == third and made[2] * made[3] == second and third not in (1, second):
        return f"This does not move the {third} channels first", "x.transpose(1, 2) first"
    if made[2] == second and made[1] * made[3] == third and 1 != made[1] != second:
        return (
            f"This does not split off the {made[1]} heads",
            f"x.view(..., {second}, {made[1]}, {made[3]}).transpose(1, 2)",
        )
    return None


def _swapped(given: Shape, made: Shape) -> bool:
    """Three sizes in another order, ones left aside. Four of them are attention's scores, which are
    skewed so on purpose (Music Transformer, Transformer-XL)."""
    before = [size for size in given if size > 1]
    after = [size for size in made if size > 1]
    return len(before) == 3 and sorted(before) == sorted(after) and before != after


def _regroups(calls: StepCalls, call: CallFacts, given: Shape, made: Shape) -> bool:
    """The sizes only happen to be those in another order: scores that were padded by a column to be
    skewed; or parts of one dimension that go to its neighbour, as heads and frames in pairs do."""
    steps = [step.name for step in calls.path(call.arguments[0])]
    if any(step in _PADDING for step in steps):
        return True
    changed = [(old, new) for old, new in zip(given, made, strict=True) if old != new]
    if any(abs(old - new) == 1 for old, new in changed):
        return True
    whole = any(old % new == 0 or new % old == 0 for old, new in changed)
    return whole and (_computed(call.site) or any(step in TRANSPOSES for step in steps))


def _computed(site: SourceSpan | None) -> bool:
    """A size is computed in the call itself, or left to it."""
    try:
        tree = ast.parse(site.expression or "", mode="eval").body if site is not None else None
    except SyntaxError:
        return False
    return isinstance(tree, ast.Call) and any(
        isinstance(node, (ast.BinOp, ast.UnaryOp))
        for argument in tree.args
        for node in ast.walk(argument)
    )
