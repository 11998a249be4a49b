"""## What it checks
The gradients that custom autograd functions return, before autograd processes them: their shape and
dtype are compared with those of the inputs they belong to.

## Why it matters
A shape that cannot be summed down to the input's raises an error; one that can is summed silently,
and the parameters before it learn from a wrong gradient. A different dtype is cast just as
silently.

## Example
    return grad_output * weight      # for an input of shape (1, d) that was broadcast to (n, d)

## Fix
Return a gradient of the shape and dtype of each input: `(grad_output * weight).sum(0,
keepdim=True)`.

## See also
ND501 cut-graph
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import effects, location_key
from nanodoc.rules.graph.failure_claims import family_of, one_end


@rule(
    "ND512",
    "gradient-shape",
    "critical",
    "a custom backward returns a gradient that does not fit its input",
    needs=("graph",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    graph = evidence.graph
    family = family_of(evidence)
    if graph is None or (evidence.failure is not None and family != "gradient-shape"):
        return
    for mismatch in graph.mismatches[:1]:
        where = mismatch.returned_at or (mismatch.op.site if mismatch.op else None)
        yield Claim(
            root=location_key(where) or ("failure",),
            specificity=Specificity.SPECIAL,
            finding=rule.finding(
                severity="critical"
                if evidence.failure is not None
                else "info"  # autograd brings it into shape, and a library relies on that
                if mismatch.of_library
                else "warning",
                confidence=confidence(0.8, 0.4 if where else 0.0),
                title="a custom backward returns a gradient that does not fit its input: "
                f"{mismatch.got} for {mismatch.expected}",
                explanation=f"Input {mismatch.position} of {mismatch.node} is "
                f"{mismatch.expected}; the gradient returned for it is {mismatch.got}. "
                + (
                    "autograd refuses it."
                    if evidence.failure
                    else "autograd sums or casts it silently, which is rarely intended."
                ),
                culprit=Culprit(
                    kind="op",
                    node=mismatch.node,
                    module=mismatch.op.module if mismatch.op else None,
                    module_type=mismatch.op.module_type if mismatch.op else None,
                    location=where,
                ),
                phase="backward",
                step=graph.step,
                effects=effects(evidence),
                fixes=(
                    Fix(
                        title="return a gradient of the shape and dtype of each input",
                        confidence="likely",
                    ),
                ),
            ),
        )
    if not graph.mismatches and family == "gradient-shape":
        yield one_end(
            rule,
            evidence,
            title="a custom backward returns a gradient that does not fit its input",
            explanation="See torch's message; re-running the step did not show which function it "
            "is.",
            sure=0.2,
        )
