"""The line of the user's that makes the labels of a step."""

from __future__ import annotations

import re

from nanodoc.facts.calls import CLASSIFICATION, REGRESSION, ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.trace.returned import Key, line_in_data, line_of_variable

_LOSSES = (*CLASSIFICATION, *REGRESSION)
_PART = re.compile(r"\[(\d+)\]|\['([^']*)'\]|\.(\w+)")


def labels_at(recipe: Recipe, calls: StepCalls) -> SourceSpan | None:
    """Of what the first loss compares with; None where the source does not tell."""
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.name in _LOSSES and call.index in reaching and len(call.arguments) > 1:
            return _made_at(recipe, calls.origin(call.arguments[1]))
    return None


def _made_at(recipe: Recipe, origin: CallFacts | ArgumentFacts) -> SourceSpan | None:
    if isinstance(origin, CallFacts):
        return origin.site
    return line_of_leaf(recipe, origin.leaf) if origin.leaf is not None else None


def line_of_leaf(recipe: Recipe, leaf: str) -> SourceSpan | None:
    """The line that makes a part of the batch, such as `batch['labels']`."""
    if not leaf.startswith("batch"):
        return None
    path: list[Key] = [
        int(number) if number else key or attribute
        for number, key, attribute in _PART.findall(leaf.removeprefix("batch"))
    ]
    step = recipe.train_step
    code = getattr(step, "code", None)
    if getattr(step, "of_script", False) and code is not None:
        names = {**step.namespace, **step.variables}  # type: ignore[union-attr]  # a script's step
        variable = str(path.pop(0)) if path and path[0] in names else step.batch_name  # type: ignore[union-attr]  # a script's step
        return line_of_variable(code, names, variable, path) if variable else None
    return line_in_data(recipe.data, path)
