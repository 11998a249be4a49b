"""## What it checks
Under torchrun: how each rank ended. A failed step is re-run on each rank without the others, so
that the rank's own batch and gradients show whether the failure began there or arrived through the
all-reduce.

## Why it matters
After one all-reduce every rank has the NaN of a single rank, and after one crash every rank raises
an error about its neighbour.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build

## Fix
See the finding of the rank that is named.

## See also
ND101 non-finite-input, ND711 process-died, ND804 desynchronised-ranks
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.collectives import entered_last
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import CLEAN, ENDED, HUNG, RankOutcome, first_root, is_root
from nanodoc.rules.ranks.outcomes import by_what_they_say, last_entered, named, told_of


@rule(
    "ND801",
    "rank-local-failure",
    "critical",
    "only some ranks failed by themselves",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    first = first_root(evidence.ranks)
    if first is None or first.ended == HUNG:
        return
    alike, others = [], []
    for outcome in evidence.ranks:
        if is_root(outcome) and outcome.ended != HUNG:
            alike.append(outcome.rank)
        else:
            others.append(outcome)
    if not others:  # the same everywhere: no question of ranks
        return
    given = [outcome for outcome in others if outcome.ended == CLEAN]
    waited = [outcome for outcome in others if outcome.ended in (ENDED, HUNG) or outcome.peer]
    waiting = {outcome.rank for outcome in waited}
    yield Claim(
        root=("ranks",),
        specificity=Specificity.FAMILY,
        stage=Stage.NOTE,  # after the cause itself
        finding=rule.finding(
            confidence=confidence(0.5, 0.4 if first.why else 0.0, 0.5 if given or waited else 0.0),
            title=f"{named(alike)} of {len(evidence.ranks)} failed, "
            f"{named([outcome.rank for outcome in others])} did not",
            explanation=_explanation(first, len(evidence.ranks), given, waited),
            culprit=Culprit(
                kind="op" if first.location is not None else "environment", location=first.location
            ),
            phase=first.phase or "forward",
            step=first.step,
            rank=first.rank,
            evidence=tuple(
                by_what_they_say(
                    (one.rank, told_of(one) + (last_entered(one) if one.rank in waiting else ""))
                    for one in evidence.ranks
                )
            ),
            effects=_effects(first, given, waited),
        ),
    )


def _explanation(
    first: RankOutcome, ranks: int, given: list[RankOutcome], waited: list[RankOutcome]
) -> str:
    """How the first rank failed, what the all-reduce gave to others, and which ones waited."""
    how = {
        "sick": "made a non-finite value",
        "failed": "raised",
        "died": "died",
        "lost": "is gone",
    }[first.ended]
    where = (
        f"in the {first.phase} of step {first.step}"
        if first.step is not None
        else "before its first step"
    )
    by_gloo = first.aborted and _on_gloo(waited)
    parts = [
        f"Rank {first.rank} of {ranks} was aborted inside a collective {where}. "
        "That is how gloo ends ranks that have entered different collectives, "
        "or the same one with different shapes; it says so on stderr."
        if by_gloo
        else f"Rank {first.rank} of {ranks} {how} {where}, by itself."
    ]
    if given:
        many, whom = len(given) > 1, named([outcome.rank for outcome in given]).capitalize()
        if all(outcome.ran_alone for outcome in given):
            said = f", re-run without the others, {'are' if many else 'is'} finite on "
            said += f"{'their' if many else 'its'} own batch"
        elif all(math.isfinite(outcome.loss or 0.0) for outcome in given):
            said = f": {'their losses are' if many else 'its loss is'} finite"
        else:
            said = ": the values that went into the collectives are finite"
        parts.append(f"{whom}{said}; the non-finite values arrived from the others.")
    if waited:
        last = entered_last(waited[0].collectives)
        one = last if last is not None and len(waited) == 1 else "one"
        only = f"waited in {one}" if by_gloo else "only waited for it"
        parts.append(f"{named([outcome.rank for outcome in waited]).capitalize()} {only}.")
    return " ".join(parts)


def _on_gloo(waited: list[RankOutcome]) -> bool:
    """As far as is known: the watchdog of another backend aborts, too."""
    return all(one.backend in ("", "gloo") for other in waited for one in other.collectives)


def _effects(
    first: RankOutcome, given: list[RankOutcome], waited: list[RankOutcome]
) -> tuple[tuple[str, int | None], ...]:
    """What the failure did to the other ranks."""
    arrived = "non-finite gradients arrived through the all-reduce"
    said: list[tuple[int, tuple[str, int | None]]] = [
        *((outcome.rank, (arrived, first.step)) for outcome in given),
        *(
            (
                outcome.rank,
                (
                    (outcome.why or "waited")
                    + (f" at {outcome.location.place}" if outcome.location else ""),
                    outcome.step,
                ),
            )
            for outcome in waited
        ),
    ]
    return tuple((f"{ranks}: {words}", step) for ranks, (words, step) in by_what_they_say(said))
