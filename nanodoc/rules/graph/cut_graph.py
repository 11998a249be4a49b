"""## What it checks
Trainable parameters that an optimizer holds and that get no gradient in any step although the loss
depends on them. nanodoc follows values from the parameters to the loss through every op, Python
number and NumPy array, and names the first op whose input carries a gradient and whose output
should but doesn't: detach, .data, .item(), float(), tolist(), .numpy(), torch.tensor or
torch.as_tensor of tensors, argmax, comparisons, integer casts, rounding, in-place writes that
autograd does not see, a custom autograd function that returns None. Also terms of the loss that
have no gradient themselves: samples, codes that are looked up by distance, and derivatives taken
without create_graph=True.

## Why it matters
The parameters stay at their initial values, often without any error: the loss even falls, as far as
the rest of the model manages without them.

## Example
    coordinates = torch.argmax(scores, dim=1).float()
    loss = F.l1_loss(coordinates, target)

## Fix
Compute the loss on tensors that carry their graph: logits instead of argmax, `torch.stack` instead
of `torch.tensor`, torch instead of NumPy. Wrapping the loss in a new tensor with requires_grad=True
only silences the error and trains nothing.

Intended cuts are not reported (targets, averaged teachers, discriminator steps, straight-through
estimators), as long as every trainable parameter gets its gradient in some other way.

## See also
ND509 no-grad-region, ND502 loss-without-grad, ND505 unused-parameter, ND401 no-inf-checks
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.graph.cut_claims import cut_graph
from nanodoc.rules.graph.derivative import derivative_claims
from nanodoc.rules.graph.quantised import quantised_claims
from nanodoc.rules.graph.sampled import sampled_claims


@rule(
    "ND501",
    "cut-graph",
    "critical",
    "the gradient path to some parameters ends too early",
    preflight="gradients",
    needs=("graph",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    yield from cut_graph(rule, evidence)
    yield from sampled_claims(rule, evidence)
    yield from quantised_claims(rule, evidence)
    yield from derivative_claims(rule, evidence)
