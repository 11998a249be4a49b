"""Inputs and labels that the user's source puts into different orders before the training draws
batches of them: one is indexed by a random permutation and the other is not, or by another one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from nanodoc.examination.running import ran_statements, running_scopes, scope_of
from nanodoc.facts.calls import ArgumentFacts, StepCalls
from nanodoc.facts.inspection import ShuffledApart
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.recipe import Recipe
from nanodoc.trace.branches import MAYBE, NEVER
from nanodoc.trace.files import line_span
from nanodoc.trace.made_in import Scopes
from nanodoc.trace.parsed import FUNCTION, nodes_of
from nanodoc.trace.row_orders import Orders, Pair, follow, in_order
from nanodoc.trace.row_pairs import method_of, pairs, taken_together
from nanodoc.vocabulary.calls import BINARY, CLASSIFICATION, REGRESSION

_INPUTS = "data"
_LABELS = ("targets", "labels")  # as torchvision calls them


def shuffled_apart(recipe: Recipe, build: BuildFacts, calls: StepCalls) -> ShuffledApart | None:
    """Of a step whose loss compares with a part of the batch; of functions that made the data or
    run in the step. None where the source does not tell."""
    if not _has_labels(calls):
        return None
    running = build.makers | running_scopes(recipe)
    for file in sorted({file for file, _ in running}):
        nodes = nodes_of(file)
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        for scope in nodes:
            found = None
            if isinstance(scope, ast.ClassDef):
                found = _in_class(scope, file, recipe, running)
            elif isinstance(scope, (*FUNCTION, ast.Module)) and scope_of(file, scope) in running:
                found = _in_scope(scope, file, recipe, classes)
            if found is not None:
                return found
    return None


def _has_labels(calls: StepCalls) -> bool:
    reaching = calls.reaching_the_loss()
    return any(
        call.name in (*CLASSIFICATION, *REGRESSION, BINARY)
        and call.index in reaching
        and len(call.arguments) > 1
        and not call.arguments[1].requires_grad
        and isinstance(calls.origin(call.arguments[1]), ArgumentFacts)  # and nothing made here
        for call in calls.calls
    )


def _in_scope(
    scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module,
    file: str,
    recipe: Recipe,
    classes: dict[str, ast.ClassDef],
) -> ShuffledApart | None:
    orders, states = Orders(), ran_statements(scope, file, recipe)
    for statement in in_order(scope.body):
        state = states.get(id(statement), MAYBE)
        if state == NEVER:
            continue
        if not follow(statement, orders, scope):
            return None
        if state == MAYBE:
            orders.doubt(statement)
            continue
        told = _told(orders, pairs(statement, orders, classes), file, scope)
        if told is not None:
            return told
    return _told(orders, [*_of_dataset(orders, recipe), *orders.drawn], file, scope)


def _in_class(
    kind: ast.ClassDef, file: str, recipe: Recipe, running: Scopes
) -> ShuffledApart | None:
    """Attributes that `__init__` puts into an order, and that `__getitem__` takes rows of."""
    made = method_of(kind, "__init__")
    if made is None or scope_of(file, made) not in running:
        return None
    orders, states = Orders(), ran_statements(made, file, recipe)
    for statement in in_order(made.body):
        state = states.get(id(statement), MAYBE)
        if state != NEVER and not follow(statement, orders, made):
            return None
        if state == MAYBE:
            orders.doubt(statement)
    return _told(orders, taken_together(kind), file, made)


def _told(orders: Orders, pairs: Iterable[Pair], file: str, scope: ast.AST) -> ShuffledApart | None:
    apart = next((found for pair in pairs if (found := orders.apart(*pair)) is not None), None)
    if apart is None:
        return None
    name, other = apart
    around = getattr(scope, "name", "<module>")
    line = orders.lines.get(other)
    return ShuffledApart(
        name=name,
        other=other,
        line=line_span(file, orders.lines[name], around),
        other_line=line_span(file, line, around) if line is not None else None,
    )


def _of_dataset(orders: Orders, recipe: Recipe) -> list[Pair]:
    """The inputs of the training's data set that were put into another order, and its labels:
    `dataset.data`, `dataset.targets`."""
    dataset = getattr(loader_of(recipe.data), "dataset", None)
    found = []
    for name in orders.lines:
        owner, _, attribute = name.rpartition(".")
        if owner in ("", "self") or attribute not in (_INPUTS, *_LABELS):
            continue
        others = _LABELS if attribute == _INPUTS else (_INPUTS,)
        for other in others:
            known: list[Any] = [getattr(dataset, key, None) for key in (attribute, other)]
            if all(hasattr(part, "__len__") for part in known) and len(known[0]) == len(known[1]):
                found.append((name, f"{owner}.{other}"))
    return found
