"""## What it checks
Under torchrun, when all ranks have reported: files that one rank saved with `torch.save` and a
second rank of the same machine read with `torch.load`, without a collective in between. The process
group itself counts collectives, including those of DistributedDataParallel.

## Why it matters
Nothing makes the reading rank wait until the file is complete. From time to time, and only on a
slow disk, it may read the previous epoch's file or a part of the new one.

## Example
    if rank == 0:
        torch.save(model.state_dict(), "best.pt")
    model.load_state_dict(torch.load("best.pt"))

## Fix
    if rank == 0:
        torch.save(model.state_dict(), "best.pt")
    dist.barrier()
    model.load_state_dict(torch.load("best.pt"))

## See also
ND808 shared-file, ND802 diverged-replicas
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import RankFile, RankOutcome
from nanodoc.rules.ranks.outcomes import named


@rule(
    "ND811",
    "unawaited-file",
    "warning",
    "a rank reads a file without waiting for the rank that saves it",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    races = list(_races(evidence.ranks))
    if not races:
        return
    saver, saved, _, loaded = races[0]
    same = [race for race in races if race[1].path == saved.path]
    readers = sorted({reader for _, _, reader, _ in same})
    name, reads = os.path.basename(saved.path), "read" if len(readers) > 1 else "reads"
    at = f" at {saved.location.place}" if saved.location is not None else ""
    yield Claim(
        root=("files",),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(0.7, 0.2 if len(same) > 1 else 0.0, 0.2 if at else 0.0),
            title=f"{named(readers)} {reads} {name} while rank {saver} may still be saving it",
            explanation=f"Rank {saver} saved it{at}. Before the read, there was no collective "
            "that both entered: the file may not have existed yet, or not completely.",
            culprit=Culprit(kind="config", location=loaded.location),
            phase="script",
            step=None,
            evidence=(
                ("file", name),
                ("collectives before saving", str(saved.began)),
                ("collectives before reading", str(loaded.began)),
            ),
            fixes=(
                Fix(title="call dist.barrier() between saving and reading", confidence="likely"),
            ),
        ),
    )


def _races(ranks: tuple[RankOutcome, ...]) -> Iterator[tuple[int, RankFile, int, RankFile]]:
    """(rank, what it saved, other rank, what it read) without a collective between the two."""
    for one in ranks:
        for saved in one.saved:
            for other in ranks:
                if other.rank == one.rank or other.host != one.host:
                    continue
                for loaded in other.loaded:
                    if loaded.path == saved.path and _meet(saved, loaded):
                        yield one.rank, saved, other.rank, loaded


def _meet(saved: RankFile, loaded: RankFile) -> bool:
    """The reading began before its rank had entered a collective that came after the saving, and
    after all that came before it."""
    if saved.began is None or saved.ended is None or loaded.began is None:
        return False
    return saved.began <= loaded.began <= saved.ended
