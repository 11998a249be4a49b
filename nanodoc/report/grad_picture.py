"""The facts of a graph check as the report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nanodoc.facts.graph import GraphFacts, OwnershipFacts, ParameterState
from nanodoc.report.report import GradGraph, GradParameter


def picture_of(
    steps: Sequence[GraphFacts],
    judged: GraphFacts | None,
    ownership: OwnershipFacts | None,
    modules: Mapping[str, str],
    *,
    has_optimizer: bool,
    below: str | None,
) -> GradGraph:
    """What the steps showed of the parameters below module `below`. `judged` is the step the
    findings speak of, `modules` the type of every module by path."""
    by_name = [{p.name: p for p in step.parameters} for step in steps]
    wanted = [p for p in (judged.parameters if judged is not None else ()) if _below(p.name, below)]
    outside = [
        (p.name, p.shape, "in the optimizer but not in the model")
        for p in (ownership.stale if ownership else ())
    ]
    for hidden in ownership.unregistered if ownership else ():
        owner = f"{hidden.owner}.{hidden.attribute}" if hidden.owner else hidden.attribute
        outside.append(
            (
                owner,
                (hidden.tensors,),
                f"not registered: {hidden.tensors} tensors in a plain {hidden.container}",
            )
        )
    return GradGraph(
        steps=len(steps),
        has_optimizer=has_optimizer,
        parameters=tuple(_row(p, by_name) for p in wanted),
        modules={path: kind for path, kind in modules.items() if _below(path, below)},
        edges=tuple(
            (edge.source, edge.target, edge.carries, edge.cut)
            for edge in (judged.edges if judged is not None else ())
        ),
        cuts=tuple(_cut(judged)),
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
        found.append((cut.kind, span.place if span else cut.op.op, cut.orphans))
    return found


def _below(name: str, prefix: str | None) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")
