"""## What it checks
For a script under torchrun, the first step is re-run on each rank without the others, which gives
the rank's own gradients. Their mean over the ranks is compared with the gradients the optimizers
used, along four directions.

## Why it matters
DistributedDataParallel takes the mean of the ranks' gradients. If the code divides by the number of
ranks again, each step is too small by that factor, and even smaller on more devices. If it sums the
gradients itself without dividing, each step is too large by that factor. AdamW hides both, as long
as nothing is clipped.

## Example
    model = DistributedDataParallel(net)
    loss = criterion(model(x), y) / dist.get_world_size()   # DDP divides as well
    loss.backward()

## Fix
Leave the division to DistributedDataParallel; if you reduce gradients by hand, use
`dist.ReduceOp.AVG`, or divide once.

## See also
ND802 diverged-replicas, ND806 same-batches
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import RankGradients
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.ranks.outcomes import ratio_of

_ALIKE = 0.02
"""How far a ratio may lie from what it should be."""
_EXACT = 1e-3  # rounding


@rule(
    "ND810",
    "gradient-averaging",
    "warning",
    "gradients are divided by the number of ranks twice, or never",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    told = [rank.gradients for rank in evidence.ranks]
    each = [one for one in told if one is not None]
    ranks = len(told)
    if ranks < 2 or len(each) < ranks:
        return
    ratio = ratio_of(each)
    if ratio is None:
        return
    found = _found(each, ratio, ranks)
    if found is None:
        return
    title, explanation, fix, where = found
    yield Claim(
        root=("gradients",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            confidence=confidence(
                0.6,
                # by clipping, say, a ratio may come near one of these, and not onto it
                0.4 if any(_is(ratio, v, _EXACT) for v in (1.0, ranks, 1 / ranks)) else 0.0,
                0.3 if ranks > 2 else 0.0,  # 2 is the divisor of much else
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(kind="optimizer", location=where),
            phase="backward",
            step=0,
            evidence=(
                ("used gradients over the mean of the ranks' gradients", f"{ratio:.3g}"),
                ("ranks", str(ranks)),
            ),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def _found(
    each: Sequence[RankGradients], ratio: float, ranks: int
) -> tuple[str, str, str, SourceSpan | None] | None:
    """(title, explanation, fix, line)"""
    where = each[0].divided_at
    by_loss = all(one.divisor == ranks for one in each)
    if (by_loss and _is(ratio, 1.0)) or _is(ratio, 1 / ranks):
        if where is None:  # it may be a division by something else, of which there are as many
            return None
        what = "the loss" if by_loss else "the gradients"
        return (
            f"gradients are divided by the number of ranks twice: steps are 1/{ranks} as large",
            f"{what.capitalize()} of each rank {'is' if by_loss else 'are'} divided by {ranks}, "
            f"and the gradients are also averaged over the ranks, so the optimizer uses 1/{ranks} "
            "of the gradient of the mean loss.",
            f"do not divide {what}: averaging over the ranks already does",
            where,
        )
    at = each[0].summed_at
    if at is not None and _is(ratio, ranks) and all(one.mean for one in each):
        return (
            f"gradients are summed over {ranks} ranks and never divided",
            "Each rank computes the gradient of its batch's mean loss, and the optimizer uses "
            f"the sum over the ranks: {ranks} times the gradient of the mean loss.",
            "use op=dist.ReduceOp.AVG, or divide by dist.get_world_size()",
            at,
        )
    return None


def _is(ratio: float, value: float, apart: float = _ALIKE) -> bool:
    return abs(ratio / value - 1) <= apart
