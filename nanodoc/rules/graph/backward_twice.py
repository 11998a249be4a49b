"""## What it checks
"Trying to backward through the graph a second time." The step is re-run to find the tensor that led
into a freed graph: a hidden state or buffer kept from the previous step, a loss on which backward()
is called twice, or two losses that share a part of the graph. The finding names both ends: the line
that kept the tensor and the one that read it, or the two backward calls.

## Why it matters
retain_graph=True silences the error; the graph then grows with every step, until memory runs out.

## Example
    out, self.hidden = self.rnn(x, self.hidden)

## Fix
    self.hidden = hidden.detach()

## See also
ND504 in-place-overwrite, ND510 growing-graph
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.graph import GraphFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.graph.failure_claims import (
    both_ends,
    detached_assignment,
    family_of,
    innermost,
    one_end,
)


@rule(
    "ND503",
    "backward-twice",
    "critical",
    "backward() walks through a graph that was already freed",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    family = family_of(evidence)
    # a kept buffer written in place at the start of a step: torch meets the write before the freed
    # graph
    kept = (
        family == "overwritten"
        and graph is not None
        and graph.overwrite is None
        and bool(graph.carried)
    )
    if family != "backward-twice" and not kept:
        return
    if graph is not None and graph.carried:
        yield _kept_state(rule, evidence, graph)
    elif graph is not None and len(graph.backward_calls) > 1:
        yield _two_calls(rule, evidence, graph)
    else:
        yield one_end(
            rule,
            evidence,
            title="backward() walks through a graph that was already freed",
            explanation="This step used a tensor that was computed earlier, with a graph that a "
            "previous backward() or autograd.grad() freed. It was not found among the "
            "model's attributes or the variables of the loss function.",
            sure=0.2,
        )


def _kept_state(rule: Rule, evidence: Evidence, graph: GraphFacts) -> Claim:
    """A state or buffer that still hangs on the graph of an earlier step."""
    carried = graph.carried[0]
    name = carried.name or "a tensor"
    what = "buffer" if carried.is_buffer else "state"
    detached = ("carried", "detach") in graph.verified
    title = f"{name} carries the graph of an earlier step into this one"
    if carried.elsewhere:
        title = f"{name} still holds a graph that an earlier backward() has freed"
    explanation = (
        f"The {what} {name} still holds the graph that made it ({carried.node}). This "
        "step's loss depends on it, so backward() walks into that graph, which the previous "
        "step has already freed. retain_graph=True would only make every step slower than "
        "the last."
    )
    if carried.loop is not None:
        title = f"{name} is made once, outside of the loop, and every step differentiates its graph"
        explanation = (
            f"{name} still holds the graph that made it ({carried.node}). The first backward() of "
            f"the loop at line {carried.loop.line} freed that graph, and the loss of each later "
            "step depends on it as well."
        )
    return both_ends(
        rule,
        evidence,
        carried.kept_at or carried.given_at or carried.reader.site,
        title=title,
        explanation=explanation,
        op=carried.reader,
        other=("read at", carried.reader.location) if carried.kept_at or carried.given_at else None,
        fixes=(
            Fix(
                title=f"detach {name} before you keep it"
                if carried.loop is None
                else f"add .detach() to {name} here, or compute it anew in every step",
                patch=detached_assignment(carried.kept_at),
                verified=detached or None,
                confidence="machine" if detached else "likely",
            ),
        ),
        sure=0.7,
    )


def _two_calls(rule: Rule, evidence: Evidence, graph: GraphFacts) -> Claim:
    """Two backward() calls of one step, on one loss or on two that share a graph."""
    shared, last = graph.shared_reader, graph.backward_calls[-1]
    first = graph.backward_calls[min(graph.freed_by, len(graph.backward_calls) - 1)]
    if graph.same_loss or shared is None:
        return both_ends(
            rule,
            evidence,
            last or innermost(evidence),
            title="backward() is called twice on one loss",
            explanation="The first call freed the graph; the gradients it left are already "
            "those of this loss.",
            other=("first call", first),
            fixes=(Fix(title="call backward() once per loss", confidence="likely"),),
        )
    return both_ends(
        rule,
        evidence,
        graph.shared_given_at or shared.site or first,
        title="two losses share a graph that the first backward() frees",
        explanation="The first loss is computed through ops that the second loss needs as well. "
        "If the first should not train the layers before this line (a discriminator's step), "
        "detach its input; else add the losses and call backward() once.",
        op=shared,
        other=("freed at", first),
        fixes=(
            Fix(
                title="detach the input here, or call backward() once on the sum of the losses",
                patch=_detached_input(graph.shared_given_at),
                confidence="likely",
            ),
        ),
    )


def _detached_input(call: SourceSpan | None) -> str | None:
    """`net(x)` as `net(x.detach())`; None where it has not one argument, by its name."""
    try:
        tree = ast.parse(call.expression or "", mode="eval").body if call is not None else None
    except SyntaxError:
        return None
    if not isinstance(tree, ast.Call) or len(tree.args) != 1 or tree.keywords:
        return None
    given = tree.args[0]
    if not isinstance(given, (ast.Name, ast.Attribute)):
        return None
    return f"{ast.unparse(tree.func)}({ast.unparse(given)}.detach())"
