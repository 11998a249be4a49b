"""## What it checks
Under torchrun, when all ranks have reported: the files that each of them saved with `torch.save`,
on one machine. Ranks on other machines may have separate folders.

## Why it matters
Ranks that save to the same file at the same time overwrite each other. The file may end up with
parts of both and can't be loaded, or it holds the state of the last rank.

## Example
    torch.save(model.module.state_dict(), "last.pt")

## Fix
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "last.pt")

## See also
ND802 diverged-replicas
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import count
from nanodoc.rules.ranks.outcomes import named


@rule(
    "ND808",
    "shared-file",
    "warning",
    "several ranks save to the same file",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    by: dict[tuple[str, str], dict[int, SourceSpan | None]] = {}
    for rank in evidence.ranks:
        for saved in rank.saved:
            by.setdefault((rank.host, saved.path), {})[rank.rank] = saved.location
    shared = {path: places for (_, path), places in by.items() if len(places) > 1}
    if not shared:
        return
    path, places = next(iter(shared.items()))
    ranks = sorted(places)
    where = places[ranks[0]]
    name = os.path.basename(path)
    more = f" ({count(len(shared), 'file')} in all)" if len(shared) > 1 else ""
    alike = len(set(places.values())) == 1
    yield Claim(
        root=("files",),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(0.7, 0.3 if alike else 0.0, 0.2 if len(shared) > 1 else 0.1),
            title=f"{named(ranks)} save to the same file, {name}",
            explanation=f"torch.save was called with this path{more} on {named(ranks)} of one "
            "machine. They overwrite each other: the file may hold parts of several, or the "
            "state of the last one.",
            culprit=Culprit(kind="config", location=where),
            phase="script",
            step=None,
            evidence=(("ranks", ", ".join(map(str, ranks))), ("file", name)),
            fixes=(Fix(title="save on one rank: if dist.get_rank() == 0", confidence="likely"),),
        ),
    )
