"""A second name of the model, where a copy of it is expected: a reference or a target network."""

from __future__ import annotations

import ast

from nanodoc.examination.labels import user_files
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import function_around, nodes_of


def alias_at(recipe: Recipe, calls: StepCalls) -> SourceSpan | None:
    """The only statement in the files of the step that gives the model a further name which the
    step reads: `reference = policy`."""
    functions = [f for f in (recipe.loss_fn, recipe.train_step) if f is not None]
    names = {name for f in functions for name, _, value in variables_of(f) if value is recipe.model}
    found = []
    for file in user_files(call.called_from or call.location for call in calls.calls):
        nodes = nodes_of(file)
        for node in nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
                continue
            if any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
                found.append(line_span(file, node.lineno, function_around(nodes, node.lineno)))
    return found[0] if len(found) == 1 else None
