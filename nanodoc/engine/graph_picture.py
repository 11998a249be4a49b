"""The facts of a graph check as the report shows them."""

from __future__ import annotations

from difflib import get_close_matches

from nanodoc.engine.graph_run import GraphOutcome
from nanodoc.errors import UsageError
from nanodoc.graph_evidence import GraphFacts, ParameterState
from nanodoc.recipe.recipe import Recipe
from nanodoc.report.model import GradGraph, GradParameter


def check_module(recipe: Recipe, prefix: str) -> None:
    """Raises `UsageError` if no module of the recipe's model lies at `prefix`."""
    paths = [path for path, _ in recipe.model.named_modules()]
    if prefix not in paths:
        near = get_close_matches(prefix, paths, 1, cutoff=0)
        raise UsageError(
            f"the model has no module {prefix!r}; did you mean {near[0]!r}?" if near else f"the model has no module {prefix!r}"
        )


def picture_of(recipe: Recipe, outcome: GraphOutcome, module: str | None) -> GradGraph:
    """What `outcome` knows of the parameters below `module`."""
    facts = outcome.merged
    modules = {path: type(m).__name__ for path, m in recipe.model.named_modules() if _below(path, module)}
    by_name = [{p.name: p for p in step.parameters} for step in outcome.steps]
    wanted = [p for p in (facts.parameters if facts is not None else ()) if _below(p.name, module)]
    ownership = outcome.ownership
    outside = [(p.name, p.shape, "in the optimizer but not in the model") for p in (ownership.stale if ownership else ())]
    for hidden in ownership.unregistered if ownership else ():
        owner = f"{hidden.owner}.{hidden.attribute}" if hidden.owner else hidden.attribute
        outside.append((owner, (hidden.tensors,), f"not registered: {hidden.tensors} tensors in a plain {hidden.container}"))
    return GradGraph(
        steps=len(outcome.steps),
        has_optimizer=bool(recipe.optimizers),
        parameters=tuple(_row(p, by_name) for p in wanted),
        modules=modules,
        edges=tuple((edge.source, edge.target, edge.carries, edge.cut) for edge in (facts.edges if facts is not None else ())),
        cuts=tuple(_cut(facts)),
        outside=tuple(outside),
    )


def _row(parameter: ParameterState, by_name: list[dict[str, ParameterState]]) -> GradParameter:
    rows = [names[parameter.name] for names in by_name if parameter.name in names]
    norms = [row.norm for row in rows if row.norm is not None]
    return GradParameter(
        name=parameter.name,
        shape=parameter.shape,
        numel=parameter.numel,
        states=tuple(row.state for row in rows),
        norm=norms[-1] if norms else None,
        optimizers=parameter.optimizers,
    )


def _cut(facts: GraphFacts | None) -> list[tuple[str, str, tuple[str, ...]]]:
    found = []
    for cut in facts.cuts if facts is not None else ():
        span = cut.region or cut.returned_at or cut.op.location
        found.append((cut.kind, f"{span.file}:{span.line}" if span else cut.op.op, cut.orphans))
    return found


def _below(name: str, prefix: str | None) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")
