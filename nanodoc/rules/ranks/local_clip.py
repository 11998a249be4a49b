"""## What it checks
Calls of `torch.nn.utils.clip_grad_norm_` in a run with several ranks, with parameters of a
FullyShardedDataParallel that are sharded over the ranks.

## Why it matters
The norm is that of the rank's own part. Each rank scales its part by a different factor, so
clipping changes the gradient's direction and gives a wrong norm.

## Example
    model = FullyShardedDataParallel(net)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Fix
    model.clip_grad_norm_(1.0)

With `fully_shard`, whose parameters are DTensors, `torch.nn.utils.clip_grad_norm_` is correct.

## See also
ND802 diverged-replicas
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count


@rule(
    "ND809",
    "local-clip",
    "warning",
    "gradients are clipped by the norm of a single rank's part",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    clip = evidence.local_clip
    if clip is None:
        return
    yield Claim(
        root=("clip",),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(0.8, 0.3 if clip.times > 1 else 0.0),
            title="clip_grad_norm_ sees only this rank's part of the gradients",
            explanation=f"In {count(clip.times, 'call')} it got parameters of a "
            "FullyShardedDataParallel, which are sharded over the ranks, as plain tensors. "
            "The norm is that of the rank's part, and each rank scales its part by a "
            "different factor.",
            culprit=Culprit(kind="optimizer", location=clip.at),
            phase="optimizer",
            step=0,
            evidence=(("first norm of this rank's part", f"{clip.norm:.4g}"),),
            fixes=(Fix(title="model.clip_grad_norm_(max_norm)", confidence="likely"),),
        ),
    )
