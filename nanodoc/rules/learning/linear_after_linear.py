"""## What it checks
Two linear layers, or two convolutions, with nothing between them but dropout or batch norm: what
the first one gives goes into the second one alone, and is not narrower than both the inputs and the
outputs of the two. Layers without a bias, and those that are given what frozen layers made, may be
linear on purpose. Up to 150 early steps are run again with ReLU between the two. Reported if they
end at a loss that is lower by a tenth of the way that it had come, or less than half as high, and
lower in four of five of the later steps.

## Why it matters
Whatever their weights, the two are a linear map together: a network that seems to have one more
layer cannot learn what it was given that layer for.

## Example
    h = self.hidden(x)
    return self.out(h)

## Fix
    h = torch.relu(self.hidden(x))
    return self.out(h)

## See also
ND633 spoiled-logits; Goodfellow, Bengio and Courville 2016, Deep learning, section 6.1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, learning_claim


@rule(
    "ND680",
    "linear-after-linear",
    "warning",
    "two linear layers without an activation between them",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.pattern.between if evidence.pattern is not None else None
    if found is None:
        return
    pair = found.layers
    first, second = (one.removesuffix(".weight") for one in (pair.weight, pair.next_weight))
    inputs, hidden, outputs = pair.sizes
    kind = "linear layers" if pair.layer.name == "linear" else "convolutions"
    culprit = at_call(pair.last, evidence)
    yield learning_claim(
        rule,
        location_key(culprit.location) or ("between", first, second),
        title=f"no activation between the {kind} {first} and {second}",
        explanation=f"No activation stands between {first} ({inputs} to {hidden}) and {second} "
        f"({hidden} to {outputs}), so that together they are one linear map of {inputs} to "
        f"{outputs}. With ReLU between them, the same early steps of this run end at a lower loss.",
        culprit=culprit,
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, max(0.0, 1 - found.changed / (found.loss or 1.0)) / 2),
        notes=[
            ("late loss", f"{found.loss:.4g}"),
            ("late loss with ReLU", f"{found.changed:.4g}"),
        ],
        fix=Fix(
            title=f"a nonlinear function between {first} and {second}",
            verified=True,
            outcome=f"with relu there the same {found.steps} steps end at loss "
            f"{found.changed:.3g} instead of {found.loss:.3g}",
        ),
    )
