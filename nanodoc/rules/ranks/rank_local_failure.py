"""## What it checks
Under torchrun: how every rank ended. A step that went wrong is run again on each rank without the
others, so that its own batch and its own gradients tell whether the trouble began there or arrived
by the all-reduce.

## Why it matters
After one all-reduce every rank has the NaN of one, and after one crash every rank has an error
about its neighbour.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build

## Fix
That of the finding of the rank that is named.

## See also
ND101 non-finite-input, ND711 process-died, ND804 desynchronised-ranks
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import CLEAN, DIED, ENDED, HUNG, ROOTS, first_root
from nanodoc.rules.ranks.outcomes import named, told_of


@rule(
    "ND801",
    "rank-local-failure",
    "critical",
    "some ranks failed by themselves, the others did not",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    first = first_root(evidence.ranks)
    if first is None or first.ended == HUNG:
        return
    alike = [
        one.rank
        for one in evidence.ranks
        if one.ended in ROOTS and not one.peer and one.ended != HUNG
    ]
    others = [one for one in evidence.ranks if one.rank not in alike]
    if not others:  # the same everywhere: no question of ranks
        return
    given = [one.rank for one in others if one.ended == CLEAN]
    waited = [one for one in others if one.ended in (ENDED, HUNG) or one.peer]
    how = {
        "sick": "made a value that is not finite",
        "failed": "raised",
        "died": "died",
        "lost": "is gone",
    }[first.ended]
    where = (
        f"in the {first.phase} of step {first.step}"
        if first.step is not None
        else "before its first step"
    )
    parts = [f"Rank {first.rank} of {len(evidence.ranks)} {how} {where}, by itself."]
    if first.ended == DIED and first.waits:
        parts = [
            f"Rank {first.rank} of {len(evidence.ranks)} was aborted inside a collective {where}. "
            "That is how gloo ends ranks that have entered different collectives, "
            "or the same one with different shapes; it says so on stderr."
        ]
    if given:
        parts.append(
            f"{named(given).capitalize()}, run again without the others, "
            f"{'are' if len(given) > 1 else 'is'} finite on "
            f"{'their' if len(given) > 1 else 'its'} own batch: what is not finite there arrived "
            "by the all-reduce."
        )
    if waited:
        only = "waited in one" if first.ended == DIED and first.waits else "only waited for it"
        parts.append(f"{named([one.rank for one in waited]).capitalize()} {only}.")
    effects = [
        (f"rank {rank}: gradients that are not finite arrived by the all-reduce", first.step)
        for rank in given
    ]
    effects += [
        (
            f"rank {one.rank}: {one.why or 'waited'}"
            + (f" at {one.location.file}:{one.location.line}" if one.location else ""),
            one.step,
        )
        for one in waited
    ]
    yield Claim(
        root=("ranks",),
        specificity=Specificity.FAMILY,
        stage=Stage.NOTE,  # after the cause itself
        finding=rule.finding(
            confidence=confidence(0.5, 0.4 if first.why else 0.0, 0.5 if given or waited else 0.0),
            title=f"{named(alike)} of {len(evidence.ranks)} failed, "
            f"{named([one.rank for one in others])} did not",
            explanation=" ".join(parts),
            culprit=Culprit(
                kind="op" if first.location is not None else "environment", location=first.location
            ),
            phase=first.phase or "forward",
            step=first.step,
            rank=first.rank,
            evidence=tuple((f"rank {one.rank}", told_of(one)) for one in evidence.ranks),
            effects=tuple(effects),
        ),
    )
