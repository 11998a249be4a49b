"""`check-grad-graph` as a picture: Graphviz's plain-text language, the cut in red. No binary is
needed to write it."""

from __future__ import annotations

from nanodoc.report.grad_tree import WORDS
from nanodoc.report.report import GradGraph, Report
from nanodoc.text import clean

# a picture of more says nothing; modules are folded into their parents until it fits
_MOST_NODES = 60
_FILLS = {
    "gradient": "#d7f0d7",
    "frozen": "#d7e3f7",
    "cut": "#f7c6c6",
    "lost": "#f7c6c6",
    "mixed": "#fbe8c0",
    "": "#eeeeee",
}


def render_dot(report: Report) -> str:
    """A digraph of modules: who hands tensors to whom; solid where gradient flows back, dashed
    where it doesn't."""
    graph = report.graph
    lines = [
        "digraph nanodoc {",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif"];',
    ]
    if graph is not None:
        fold = _folding(graph)
        edges = _edges(graph, fold)
        nodes = dict.fromkeys([end for source, target in edges for end in (source, target)])
        for node in nodes:
            lines.append(
                f"  {_quoted(node)} [label={_label(node, graph)}, "
                f"fillcolor={_quoted(_fill(node, graph, fold))}];"
            )
        for (source, target), (carries, cut) in edges.items():
            style = (
                'color="red", penwidth=3, label="cut"' if cut else "" if carries else "style=dashed"
            )
            lines.append(
                f"  {_quoted(source)} -> {_quoted(target)}{f' [{style}]' if style else ''};"
            )
        for kind, place, orphans in graph.cuts:
            lines.append(f"  // cut ({clean(kind)}) at {clean(place)}: {clean(', '.join(orphans))}")
    return "\n".join([*lines, "}"]) + "\n"


def _folding(graph: GradGraph) -> dict[str, str]:
    """Each module path that is an end of an edge → the ancestor that stands for it."""
    ends = {end for source, target, _, _ in graph.edges for end in (source, target)}
    depth = max((end.count(".") + 1 for end in ends), default=1)
    while True:
        fold = {end: ".".join(end.split(".")[:depth]) for end in ends}
        if len(set(fold.values())) <= _MOST_NODES or depth == 1:
            return fold
        depth -= 1


def _edges(graph: GradGraph, fold: dict[str, str]) -> dict[tuple[str, str], tuple[bool, bool]]:
    found: dict[tuple[str, str], tuple[bool, bool]] = {}
    for source, target, carries, cut in graph.edges:
        key = (fold[source], fold[target])
        if key[0] == key[1] and not cut:
            continue
        before = found.get(key, (False, False))
        found[key] = (before[0] or carries, before[1] or cut)
    leaving = {source for (source, target), (_, cut) in found.items() if cut and source != target}
    return {
        (source, target): edge
        for (source, target), edge in found.items()
        if source != target or source not in leaving
    }


def _label(node: str, graph: GradGraph) -> str:
    if node in ("batch", "loss"):
        return _quoted(node)
    name, kind = node or "(model)", graph.modules.get(node, "")
    states = dict.fromkeys(p.state for p in graph.parameters if _own(p.name, node))
    state = ", ".join(WORDS[state] for state in states)
    return _quoted("\n".join(part for part in (name, kind, state) if part))


def _fill(node: str, graph: GradGraph, fold: dict[str, str]) -> str:
    states = {p.state for p in graph.parameters if _own(p.name, node)}
    if not states or node in ("batch", "loss"):
        return _FILLS[""]
    return _FILLS.get(states.pop(), _FILLS["mixed"]) if len(states) == 1 else _FILLS["mixed"]


def _own(name: str, node: str) -> bool:
    return name.startswith(node + ".") if node else "." not in name


def _quoted(text: str) -> str:
    safe = "\\n".join(clean(line) for line in text.split("\n"))
    return '"' + safe.replace('"', '\\"') + '"'
