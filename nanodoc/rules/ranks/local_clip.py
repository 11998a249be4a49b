"""## What it checks
Calls of `torch.nn.utils.clip_grad_norm_` under several ranks, with parameters of a
FullyShardedDataParallel of which each rank holds a part.

## Why it matters
The norm is that of the rank's own part. Each rank scales its part by another factor, so that the
gradient points elsewhere after the clip, and its norm is not what was asked for.

## Example
    model = FullyShardedDataParallel(net)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

## Fix
    model.clip_grad_norm_(1.0)

With `fully_shard`, whose parameters are DTensors, `torch.nn.utils.clip_grad_norm_` is right.

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
    "gradients are clipped by the norm of one rank's part",
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
            title="clip_grad_norm_ sees this rank's part of the gradients only",
            explanation=f"In {count(clip.times, 'call')} it was given parameters of a "
            "FullyShardedDataParallel, of which each rank holds a part, as plain tensors. The norm "
            "is that of the part, and each rank scales its own by another factor.",
            culprit=Culprit(kind="optimizer", location=clip.at),
            phase="optimizer",
            step=0,
            evidence=(("norm of this rank's part, at first", f"{clip.norm:.4g}"),),
            fixes=(Fix(title="model.clip_grad_norm_(max_norm)", confidence="likely"),),
        ),
    )
