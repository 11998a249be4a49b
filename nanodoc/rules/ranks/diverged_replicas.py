"""## What it checks
When every rank has finished: digests of every trained parameter are compared between ranks if a
DistributedDataParallel over all ranks keeps them equal, or if several ranks hold the same part in
hybrid sharding. Without either, parameters that started equal and end different are an info: it may
be intended.

## Why it matters
If replicas differ, the run trains as many models as there are ranks, and saves one of them.

## Example
    if rank == 0:
        model.module.head.reset_parameters()

## Fix
Wrap the model in DistributedDataParallel, and change parameters before that, or in the same way on
every rank.

## See also
ND801 rank-local-failure
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import spans_of
from nanodoc.rules.base import count

_OTHERWISE = (
    "DistributedDataParallel gives every rank the same gradient, but the parameters differ, so "
    "something else changed them on some ranks: an update outside the optimizer, a condition on "
    "the rank, weights loaded after wrapping, a forward that bypasses the wrapper "
    "(model.module(x))."
)

_SHARDED = (
    "Hybrid sharding gives the ranks that hold the same part the same gradient, but the parts "
    "differ: they started with different weights (fully_shard() does not send them from one rank "
    "to the others), or something other than the optimizer changed them on some ranks."
)

_UNWRAPPED = (
    "They started equal, and the ranks are in one process group, but nothing gives them the same "
    "gradient: no DistributedDataParallel wraps the model."
)


_PART = re.compile(r" \(part [\d, ]+\)(?= \[)")


@rule(
    "ND802",
    "diverged-replicas",
    "critical",
    "ranks that should hold the same parameters do not",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if (
        len(ranks) < 2
        or not all(rank.fingerprints for rank in ranks)
        or len({rank.steps for rank in ranks}) > 1
    ):
        return
    held = [dict(rank.fingerprints) for rank in ranks]
    # other parameters, or other shapes: other models
    if any(list(map(_whole, one)) != list(map(_whole, held[0])) for one in held):
        return
    names = list(dict.fromkeys(name for one in held for name in one))
    differing = [name for name in names if len({one[name] for one in held if name in one}) > 1]
    sharded = any(_PART.search(name) for name in names)
    wrapped = sharded or all(rank.wrapped for rank in ranks)
    if not differing or not (
        wrapped or (ranks[0].before and len({rank.before for rank in ranks}) == 1)
    ):
        return
    shown = [name.partition(" [")[0] for name in differing]
    first = differing[0]
    holders = [
        (rank.rank, one[first]) for rank, one in zip(ranks, held, strict=True) if first in one
    ]
    usual = Counter(digest for _, digest in holders).most_common(1)[0][0]
    odd = [rank for rank, digest in holders if digest != usual] or [ranks[-1].rank]
    why, fix = _account(sharded=sharded, wrapped=wrapped)
    yield Claim(
        root=("replicas",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            # local steps between averages, an ensemble: it may be meant
            severity=rule.severity if wrapped else "info",
            confidence=confidence(
                0.8 if wrapped else 0.4, 0.5 if len(odd) < len(ranks) / 2 else 0.2
            ),
            title=f"after {count(ranks[0].steps, 'step')} the ranks hold different parameters",
            explanation=f"{count(len(shown), 'parameter')} of {len(names)} "
            f"differ{'s' if len(shown) == 1 else ''} between ranks, the first {shown[0]}. "
            f"{why}",
            culprit=Culprit(kind="parameter", parameter=shown[0]),
            phase="optimizer",
            step=ranks[0].steps - 1,
            rank=odd[0],
            evidence=(
                (
                    "differing",
                    ", ".join(shown[:4])
                    + (f" and {len(shown) - 4} more" if len(shown) > 4 else ""),
                ),
                ("ranks that differ from most", spans_of(odd)),
            ),
            fixes=(Fix(title=fix, confidence="likely" if wrapped else "maybe"),),
        ),
    )


def _whole(name: str) -> str:
    """Without which part of it a rank holds."""
    return _PART.sub("", name)


def _account(*, sharded: bool, wrapped: bool) -> tuple[str, str]:
    """Why they differ, and what to do."""
    if sharded:
        return _SHARDED, (
            "start with the same weights on every rank (one seed, or a broadcast), and change "
            "them in the same way"
        )
    if wrapped:
        return _OTHERWISE, (
            "change parameters in the same way on every rank, and before the model is wrapped"
        )
    return _UNWRAPPED, (
        "if they should train one model: torch.nn.parallel.DistributedDataParallel(model)"
    )
