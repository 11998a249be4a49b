"""`check-grad-graph` for a reader: the module tree with every parameter's state, folded where
alike."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from nanodoc.report.report import GradGraph, GradParameter, Report
from nanodoc.report.terminal import Look, render_findings
from nanodoc.text import clean, ranges

WORDS = {
    "gradient": "gets gradient",
    "zero": "zero gradient",
    "cut": "cut off",
    "lost": "gradient lost on the way",
    "unreached": "used, but not by the loss",
    "unused": "never used in forward",
    "frozen": "frozen",
    "intermittent": "gradient on some steps",
}
_STYLES = {
    "gradient": "green",
    "frozen": "blue",
    "cut": "bold red",
    "lost": "bold red",
    "zero": "yellow",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What makes two parameters alike."""

    state: str
    owned: bool
    steps: tuple[str, ...]


def render_tree(report: Report, look: Look = Look()) -> str:  # noqa: B008 - it is frozen
    """The tree, then the findings and the verdict."""
    graph = report.graph
    out = io.StringIO()
    console = Console(
        force_jupyter=False,  # it would show the text itself, and give none
        file=out,
        force_terminal=look.color,
        no_color=not look.color,
        width=look.width,
        color_system="standard" if look.color else None,
        highlight=False,
    )
    if graph is not None:
        steps = "1 step" if graph.steps == 1 else f"{graph.steps} steps"
        head = (
            f"nanodoc {clean(report.nanodoc)} · {clean(report.run.entrypoint)} · "
            f"{clean(report.run.device)} · "
            f"{steps}, no optimizer step"
        )
        console.print(Text(head, "bold"), soft_wrap=True)
        console.print(_tree(graph))
        for name, shape, state in graph.outside:
            size = f" {list(shape)}" if state.startswith("in the") else ""
            console.print(
                Text(f"outside the model: {clean(name)}{size}  {state}", "yellow"), soft_wrap=True
            )
    return out.getvalue() + render_findings(report, look)


def _tree(graph: GradGraph) -> Tree:
    root = next(iter(graph.modules), "")
    below = {path: [p for p in graph.parameters if _below(p.name, path)] for path in graph.modules}
    children: dict[str, list[str]] = {path: [] for path in graph.modules}
    for path in graph.modules:
        if path != root:
            parent = path.rpartition(".")[0]
            children.setdefault(parent if parent in graph.modules else root, []).append(path)
    tree = Tree(
        _line(
            root or graph.modules.get(root, "model"),
            graph.modules.get(root, ""),
            below.get(root, []),
            graph,
        )
    )
    if root in below and _kind_of(below[root], graph) is None:
        _grow(tree, root, graph, below, children)
    return tree


def _grow(
    tree: Tree,
    path: str,
    graph: GradGraph,
    below: dict[str, list[GradParameter]],
    children: dict[str, list[str]],
) -> None:
    own = [p for p in below[path] if p.name.rpartition(".")[0] == path]
    for parameter in own:
        name = parameter.name.rpartition(".")[2]
        tree.add(_leaf(name, parameter, graph))
    for run in _runs([c for c in children.get(path, []) if below[c]], graph, below):
        first, kind = run[0], _kind_of(below[run[0]], graph)
        members = [p for child in run for p in below[child]]
        name = first.rpartition(".")[2]
        if len(run) > 1:
            name += f" … {run[-1].rpartition('.')[2]}"
        branch = tree.add(_line(name, graph.modules[first], members, graph, times=len(run)))
        if kind is None:
            _grow(branch, first, graph, below, children)


def _runs(
    paths: list[str], graph: GradGraph, below: dict[str, list[GradParameter]]
) -> Iterator[list[str]]:
    """Neighbours of one type whose parameters are all alike, together."""
    run: list[str] = []
    for path in paths:
        kind = _kind_of(below[path], graph)
        if (
            run
            and kind is not None
            and kind == _kind_of(below[run[0]], graph)
            and graph.modules[path] == graph.modules[run[0]]
        ):
            run.append(path)
            continue
        if run:
            yield run
        run = [path]
    if run:
        yield run


def _kind_of(parameters: list[GradParameter], graph: GradGraph) -> _Kind | None:
    """What all of them have in common, None if they differ."""
    kinds = {_kind(p, graph) for p in parameters}
    return kinds.pop() if len(kinds) == 1 else None


def _kind(p: GradParameter, graph: GradGraph) -> _Kind:
    return _Kind(
        p.state,
        bool(p.optimizers) or not graph.has_optimizer,
        p.states if p.state == "intermittent" else (),
    )


def _line(
    name: str, kind: str, parameters: list[GradParameter], graph: GradGraph, times: int = 1
) -> Text:
    text = Text(clean(name))
    many = f"{times} × " if times > 1 else ""
    text.append(f" ({many}{clean(kind)})" if name != kind else "", "dim")
    if not parameters:
        return text
    text.append(
        f"  {len(parameters)} parameters" if len(parameters) != 1 else "  1 parameter", "dim"
    )
    common = _kind_of(parameters, graph)
    if common is not None:
        text.append("  ").append_text(_state(common, parameters, graph))
    return text


def _leaf(name: str, parameter: GradParameter, graph: GradGraph) -> Text:
    text = Text(f"{clean(name)} {list(parameter.shape)}  ")
    return text.append_text(_state(_kind(parameter, graph), [parameter], graph))


def _state(kind: _Kind, parameters: list[GradParameter], graph: GradGraph) -> Text:
    text = Text(WORDS[kind.state], _STYLES.get(kind.state, "yellow"))
    norms = [p.norm for p in parameters if p.norm]
    if kind.state == "gradient" and norms:
        low, high = min(norms), max(norms)
        text.append(f" (norm {low:.3g})" if low == high else f" (norm {low:.3g} … {high:.3g})")
    if kind.state == "intermittent":
        lacking = [i for i, state in enumerate(kind.steps) if state not in ("gradient", "zero")]
        text.append(f" (none on {ranges(lacking)} of {graph.steps})")
    if kind.state in ("cut", "lost"):
        names = {p.name for p in parameters}
        places = dict.fromkeys(place for _, place, orphans in graph.cuts if names & set(orphans))
        text.append(f" at {clean(', '.join(places))}" if places else "")
    if not kind.owned and kind.state != "frozen":
        text.append(", not in any optimizer", "bold yellow")
    return text


def _below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(path + ".")
