"""## What it checks
For a script under torchrun whose loss is a mean of cross-entropies with ignored labels
(`ignore_index`: padding, prompts): how many labels each rank counts in the first step, while the
gradients are averaged over the ranks.

## Why it matters
The mean of the ranks' means is not the mean over all labels. A label on a rank with few labels
weighs more than one on a rank with many, in proportion to their numbers; the same data gives a
different gradient on a different number of ranks.

## Example
    loss = F.cross_entropy(logits, labels, ignore_index=-100)
    loss.backward()     # DistributedDataParallel averages

## Fix
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    labels_of_all = (labels != -100).sum()
    dist.all_reduce(labels_of_all)
    loss = loss * dist.get_world_size() / labels_of_all

## See also
ND810 gradient-averaging
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.ranks.outcomes import ratio_of

_FACTOR = 2.0
"""Between the rank that counts most labels and the one that counts fewest."""
_AVERAGED = 0.02


@rule(
    "ND812",
    "unequal-token-means",
    "info",
    "the ranks' losses are means over very different numbers of labels",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    told = {rank.rank: rank.gradients for rank in evidence.ranks}
    each = [one for one in told.values() if one is not None]
    if len(each) < max(2, len(told)) or not all(one.mean and one.counted for one in each):
        return
    ratio = ratio_of(each)
    if ratio is None or abs(ratio - 1) > _AVERAGED or not any(one.left_out for one in each):
        return
    # whoever reduces by hand may weigh the ranks
    if not all(rank.wrapped for rank in evidence.ranks) or any(one.summed_at for one in each):
        return
    counted = {rank: one.counted for rank, one in told.items() if one is not None}
    fewest, most = min(counted, key=lambda r: counted[r]), max(counted, key=lambda r: counted[r])
    factor = counted[most] / counted[fewest]
    if factor < _FACTOR:
        return
    yield Claim(
        root=("labels",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            confidence=confidence(0.8, 0.3 if factor > 2 * _FACTOR else 0.1),
            title=f"a label on rank {fewest} weighs {factor:.3g} times as much as one on rank "
            f"{most}",
            explanation=f"In the first step, rank {fewest}'s loss is the mean over "
            f"{counted[fewest]} labels and rank {most}'s over {counted[most]}; the others are "
            "ignored. The gradients are then averaged over the ranks, which gives both the "
            "same weight.",
            culprit=Culprit(kind="op", location=each[0].loss_at),
            phase="forward",
            step=0,
            evidence=tuple(
                (f"rank {rank}", f"{number} labels counted") for rank, number in counted.items()
            ),
            fixes=(
                Fix(
                    title="sum over the labels, divide by their number on all ranks "
                    "(all_reduce), and multiply by the number of ranks",
                    confidence="likely",
                ),
            ),
        ),
    )
