"""## What it checks
Trainable layers, held by an optimizer, that in every step run inside torch.no_grad(),
torch.inference_mode(), torch.set_grad_enabled(False) or a reentrant checkpoint without an input
that requires gradient. The finding names the line that opened the region.

## Why it matters
The layers never learn. A teacher whose weights are an average of another module's is not reported.

## Example
    with torch.no_grad():
        features = self.encoder(x)      # self.encoder.parameters() are in the optimizer

## Fix
Move the layers out of the region, or freeze them and leave them out of the optimizer.

## See also
ND501 cut-graph, ND508 unexpectedly-frozen
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.graph.cut_claims import cut_graph
from nanodoc.rules.graph.owners import is_replaced


@rule(
    "ND509",
    "no-grad-region",
    "critical",
    "trainable layers run with gradients switched off",
    preflight="gradients",
    needs=("graph",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    return () if _is_another_network_s(evidence) else cut_graph(rule, evidence)


def _is_another_network_s(evidence: Evidence) -> bool:
    """What gets gradients is in no optimizer, and nothing that the optimizers hold, or one of them,
    ever gets one: a teacher runs without gradients, and its parameters were handed over by mistake
    (ND506)."""
    facts, graph = evidence.ownership, evidence.graph
    if facts is None or graph is None or is_replaced(facts) or not facts.neglected:
        return False
    never = set(evidence.never_got_gradient)
    without = [p for p in graph.parameters if p.optimizers and p.name in never]
    return bool(without) and all(
        index < len(facts.idle) and facts.idle[index] for p in without for index in p.optimizers
    )
