"""## What it checks
A regression loss, or a difference or product on the way to the loss, whose two sides have shapes
such as (N, 1) and (N,): they broadcast to (N, N). Also two parts of a prediction or of a target, if
their (N, N) result is compared with N values of the other. The calls of one step are recorded when
it is run once more at the end of the run.

## Why it matters
Every prediction is compared with every target. The loss falls to the variance of the targets and
stays there; at most, torch gives a warning.

## Example
    prediction = model(x)                 # (64, 1)
    loss = F.mse_loss(prediction, y)      # y is (64,)

## Fix
    loss = F.mse_loss(prediction.squeeze(-1), y)

## Options
A difference written as `a[:, None] - b` in one line is taken as intended: all pairs.

## See also
ND612 double-softmax
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import ReplaceArgument
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_of, op_of
from nanodoc.rules.rewrite import on_argument
from nanodoc.vocabulary.calls import DRAWS, FACTORS, FROM_ARRAYS, REGRESSION

_COMPARED_BY_HAND = ("sub", *FACTORS)
_ROWS_TAKEN = ("getitem", "index_select")
_COMBINING = ("add", "sub", "mul")


@rule(
    "ND111",
    "broadcast-loss",
    "critical",
    "prediction and target of different shapes broadcast against each other",
    needs=("inspection",),
    preflight="loss",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index not in reaching or len(call.arguments) < 2:
            continue
        first, second = call.arguments[:2]
        if not _outer(first.shape, second.shape):
            continue
        if (call.name in REGRESSION and not _on_purpose(calls, call)) or (
            call.name in _COMPARED_BY_HAND and _by_accident(calls, call, first, second)
        ):
            yield _broadcast(rule, evidence, call)
            return
        if call.name in _COMBINING and _of_one_prediction(calls, call, first, second):
            yield _broadcast(rule, evidence, call, parts=True)
            return


def _outer(first: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Broadcast against each other, both grow: (N, 1) with (N,) becomes (N, N)."""
    if not first or not other or len(first) == len(other):
        return False
    result = [max(a, b) for a, b in zip(_padded(first, other), _padded(other, first), strict=True)]
    size = math.prod(result)
    return (
        size > math.prod(first) and size > math.prod(other) and math.prod(first) == math.prod(other)
    )


def _padded(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (len(other) - len(shape)) + shape


def _by_accident(
    calls: StepCalls, call: CallFacts, first: ArgumentFacts, second: ArgumentFacts
) -> bool:
    """One side learns, the other comes from the batch (or from what the step itself drew for both),
    and nobody put the extra dimension there in the same line: who writes `a[:, None] - b` means all
    pairs."""
    if first.requires_grad == second.requires_grad:
        return False
    learns, given = (first, second) if first.requires_grad else (second, first)
    source, other = calls.origin(learns), calls.origin(given, elementwise=True)
    if not isinstance(source, CallFacts):  # a parameter by itself, such as a vector of frequencies
        return False
    if isinstance(other, ArgumentFacts):
        given_with_input = other.of_batch or _same_rows(calls, given, source)
    else:
        given_with_input = other.index in _drawn_for(calls, learns) or _brought(
            calls, other, source
        )
    return given_with_input and not _on_purpose(calls, call)


def _brought(calls: StepCalls, given: CallFacts, source: CallFacts) -> bool:
    """The step makes both from what is no tensor, such as a replay buffer's arrays: row by row."""
    behind, _ = calls.behind(source)
    inputs = (call for call in calls.calls if call.index in behind and call.name in FROM_ARRAYS)
    return (
        given.name in FROM_ARRAYS
        and not given.arguments
        and any(call.shape[:1] == given.shape[:1] for call in inputs)
    )


def _same_rows(calls: StepCalls, given: ArgumentFacts, source: CallFacts) -> bool:
    """Its rows, and those of what the network was given, are taken by the same indices: a
    mini-batch of a rollout."""
    taken = calls.maker(given)
    while taken is not None and taken.name not in _ROWS_TAKEN:
        taken = calls.maker(taken.arguments[0]) if taken.arguments else None
    by = _taken_by(taken) if taken is not None else None
    behind, _ = calls.behind(source)
    return by is not None and any(
        _taken_by(one) == by for one in (calls.calls[index] for index in behind)
    )


def _taken_by(call: CallFacts) -> tuple[str, object] | None:
    """What tells the indices of a call that takes rows: the call that made them, or values."""
    if call.name not in _ROWS_TAKEN:
        return None
    if len(call.arguments) > 1 and call.arguments[1].made_by is not None:
        return "made", call.arguments[1].made_by
    return ("rows", call.options["rows"]) if "rows" in call.options else None


def _of_one_prediction(
    calls: StepCalls, call: CallFacts, first: ArgumentFacts, second: ArgumentFacts
) -> bool:
    """Both sides learn, and what they give, one number for each pair, meets one target for each
    sample; or neither does, and one prediction for each sample is compared with what they give."""
    computed = all(isinstance(calls.origin(side), CallFacts) for side in (first, second))
    learns = first.requires_grad and second.requires_grad and computed
    given = not first.requires_grad and not second.requires_grad
    if not (learns or given) or _on_purpose(calls, call):
        return False
    pairs, samples = {call.index}, math.prod(first.shape)
    for later in calls.calls[call.index + 1 :]:
        sides = later.arguments[:2]
        from_pairs = [side for side in sides if side.made_by in pairs and side.shape == call.shape]
        others = [side for side in sides if side.made_by not in pairs]
        if not from_pairs:
            continue
        compares = later.name == "sub" or later.name in REGRESSION
        if compares and others and math.prod(others[0].shape) == samples > 1:
            if not learns:
                return others[0].requires_grad
            target = calls.origin(others[0], elementwise=True)
            return isinstance(target, ArgumentFacts) and target.of_batch
        if later.shape == call.shape:
            pairs.add(later.index)
    return False


def _drawn_for(calls: StepCalls, argument: ArgumentFacts) -> set[int]:
    """The random draws, such as randn, that an argument was computed from. Other tensors that a
    step makes, such as arange, are often laid out against each other on purpose."""
    waiting, seen, found = [argument.made_by], set[int](), set[int]()
    while waiting:
        index = waiting.pop()
        if index is None or index in seen:
            continue
        seen.add(index)
        made = calls.calls[index]
        if not made.arguments and made.name.startswith(DRAWS):
            found.add(index)
        waiting += [inner.made_by for inner in made.arguments]
    return found


def _on_purpose(calls: StepCalls, call: CallFacts) -> bool:
    """The extra dimension was put there in the same line."""
    return any(
        step.name in ("unsqueeze", "getitem")
        and step.view
        and _same_line(step, call)
        and len(step.shape) > len(step.arguments[0].shape)
        for argument in call.arguments[:2]
        for step in calls.path(argument)
    )


def _same_line(first: CallFacts, other: CallFacts) -> bool:
    a, b = first.site, other.site
    return a is not None and b is not None and (a.file, a.line) == (b.file, b.line)


def _broadcast(rule: Rule, evidence: Evidence, call: CallFacts, *, parts: bool = False) -> Claim:
    first, second = call.arguments[:2]
    left, right = list(first.shape), list(second.shape)
    rows = math.prod(first.shape)
    learns = first if first.requires_grad or not second.requires_grad else second
    wide, name = (
        (first, "the first argument")
        if len(first.shape) > len(second.shape)
        else (second, "the second argument")
    )
    warned = _warned(evidence, "target size")
    cure = (
        "squeeze(-1)"
        if wide.shape[-1:] == (1,)
        else f"view({', '.join(map(str, right if wide is first else left))})"
    )
    which = "the prediction" if wide is learns else "the target"
    title = f"{call.name} of shapes {tuple(left)} and {tuple(right)} "
    if parts:
        which = "one"
        learning = first.requires_grad or second.requires_grad
        what, meets = ("predictions", "targets") if learning else ("targets", "predictions")
        title += f"gives {rows}×{rows} {what} for {rows} {meets}"
    else:
        title += "compares every prediction with every target"
    return Claim(
        root=location_key(call.site) or ("broadcast",),
        specificity=Specificity.EXACT,
        stage=Stage.WIRING,
        finding=rule.finding(
            confidence=confidence(
                0.8, 0.5 if call.name in REGRESSION else 0.2, 0.5 if warned else 0.0
            ),
            title=title,
            explanation=f"The two broadcast against each other to {rows}×{rows} pairs instead of "
            f"{rows}: the loss is lowest if every prediction is the mean of all targets, so "
            "the model learns only that mean.",
            culprit=at_call(call, evidence),
            phase="forward",
            step=0,
            evidence=(
                ("shapes", f"{left} and {right}"),
                *((("torch warned", warned),) if warned else ()),
            ),
            fixes=(
                _same_shape(
                    call,
                    0 if wide is first else 1,
                    cure,
                    f"give both the same shape: .{cure} on {which} ({name})",
                ),
            ),
        ),
    )


def _same_shape(call: CallFacts, position: int, cure: str, title: str) -> Fix:
    if not cure.startswith("squeeze"):
        return Fix(title=title, confidence="likely")
    template = f"{{x}}.{cure}"
    patch = on_argument(op_of(call), template, position=position)
    remedy = ReplaceArgument(
        location=call.site,
        op=call.name,
        position=position,
        template=template,
        whole_run=True,
    )
    return Fix(
        title=title,
        patch=patch,
        confidence="likely",
        remedy=remedy if call.site is not None else None,
    )


def _warned(evidence: Evidence, words: str) -> str:
    found = evidence.loop.warnings if evidence.loop is not None else ()
    return next((warning.message[:160] for warning in found if words in warning.message), "")
