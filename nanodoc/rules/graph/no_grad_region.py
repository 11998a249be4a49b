"""## What it checks
Trainable layers, held by an optimizer, that run inside torch.no_grad(), torch.inference_mode(),
torch.set_grad_enabled(False) or a reentrant checkpoint none of whose inputs requires gradient, in
every step. The line that opened the region is named.

## Why it matters
The layers never learn. A teacher whose weights are an average of another module's is not reported.

## Example
    with torch.no_grad():
        features = self.encoder(x)      # self.encoder.parameters() are in the optimizer

## Fix
Take the layers out of the region, or freeze them and leave them out of the optimizer.

## See also
ND501 cut-graph, ND508 unexpectedly-frozen
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.graph.cut_claims import cut_graph


@rule(
    "ND509",
    "no-grad-region",
    "critical",
    "trainable layers run with gradients switched off",
    preflight="gradients",
    needs=("graph",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    return cut_graph(rule, evidence)
