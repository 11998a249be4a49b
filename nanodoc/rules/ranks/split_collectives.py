"""ND804: ranks that are in one collective, by its number, and have called different ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanodoc.diagnosis.finding import Fix
from nanodoc.facts.collectives import LastCollective, disagree, entered_last
from nanodoc.facts.ranks import ENDED, HUNG, ROOTS, RankOutcome
from nanodoc.rules.base import Account
from nanodoc.rules.ranks.outcomes import by_what_they_say, named

_Place = tuple[tuple[str, str], int]
"""(group, number in it)."""
_MOST_CALLS = 4
_FIXES = (
    Fix(
        title="let all ranks call the same collectives in the same order, none under a condition "
        "that not every rank meets",
        confidence="likely",
    ),
)


@dataclass(frozen=True, slots=True)
class Split:
    """Ranks that are in one collective, and in two kinds of it."""

    fewer: list[RankOutcome]
    others: list[RankOutcome]
    called: LastCollective
    """By the first of the fewer ones."""
    by_others: LastCollective
    where: RankOutcome
    """A rank that stands in it: another may have got through, and be elsewhere."""


def split_of(waiting: Sequence[RankOutcome]) -> Split | None:
    """Ranks of which one waits in a collective, and another has called another op under the same
    number, or with other shapes. Those that fewer have called come first; of as many, those whose
    line names the op: the others' may be DistributedDataParallel's own."""
    places: dict[_Place, dict[LastCollective, list[RankOutcome]]] = {}
    awaited: dict[_Place, RankOutcome] = {}
    for outcome in waiting:
        for place, call in _calls_of(outcome).items():
            if call.waits:
                awaited.setdefault(place, outcome)
            plain = replace(call, entered=0, waits=False, through=())
            places.setdefault(place, {}).setdefault(plain, []).append(outcome)
    for place, waiter in awaited.items():
        (called, fewer), *more = sorted(
            places[place].items(),
            key=lambda pair: (len(pair[1]), not any(_names(one, pair[0]) for one in pair[1])),
        )
        for by_others, others in more:
            if disagree(called, by_others):
                there = [one for one in (*fewer, *others) if _stands(one, place)]
                return Split(fewer, others, called, by_others, (*there, waiter)[0])
    return None


def account_of(split: Split) -> Account:
    """How they differ."""
    first, second = (named([one.rank for one in ranks]) for ranks in (split.fewer, split.others))
    passed = [
        one.rank for one in (*split.fewer, *split.others) if not _stands(one, _place(split.called))
    ]
    are = "is" if len(passed) == 1 else "are"
    through = f" {named(passed).capitalize()} got through it and {are} stuck further on."
    return Account(
        title=f"{first} and {second} {'called' if passed else 'wait in'} different collectives",
        explanation=f"In {split.called.place}, {first} and {second} differ: it is "
        f"{split.called.call} on {first}{_at(split.fewer, split)}, and {split.by_others.call} "
        f"on {second}{_at(split.others, split)}. A collective finishes only when all ranks of "
        f"its group have called the same op with the same shapes.{through if passed else ''}",
        fixes=_FIXES,
    )


def aborted_in_gloo(ranks: Sequence[RankOutcome]) -> tuple[RankOutcome, list[RankOutcome]] | None:
    """(a rank that was aborted in a collective, the others whose last collective is known), where
    nothing else ended a rank, and gloo alone is used."""
    aborted = [one for one in ranks if one.aborted]
    roots = [one for one in ranks if one.ended in ROOTS and not (one.aborted or one.peer)]
    if not aborted or any(one.ended != HUNG for one in roots):
        return None
    left = [one for one in ranks if one.ended in (HUNG, ENDED) or one.peer]
    others = [one for one in left if one.collectives]
    entered = [call for one in others for call in one.collectives]
    known = bool(entered) and all(call.backend == "gloo" for call in entered)
    return (aborted[0], others) if known else None


def account_of_abort(aborted: RankOutcome, others: list[RankOutcome]) -> Account:
    """What is known of it: what the aborted rank had called is gone with its process."""
    one = named([aborted.rank])
    last = by_what_they_say((o.rank, f"{entered_last(o.collectives)}{_line(o)}") for o in others)
    told = "; ".join(f"{ranks}: {call}" for ranks, call in last[:_MOST_CALLS])
    whom = named([others[0].rank]) if len(others) == 1 else "another rank"
    return Account(
        title=f"{one} was aborted in a collective that {whom} called differently",
        explanation="gloo aborts a process (SIGABRT, with a message on stderr) that receives "
        "more bytes than its current collective expects. This means that ranks have entered "
        "different collectives, or the same one with different shapes. The last collective "
        f"of the others: {told}. {one.capitalize()} was in the one that its line calls.",
        fixes=_FIXES,
    )


def _calls_of(outcome: RankOutcome) -> dict[_Place, LastCollective]:
    """What a rank has called under each number. Of several under one number (a device's backend
    may put them together) none; of a rank that an error has ended, only what it waits in: others
    may have failed."""
    found: dict[_Place, list[LastCollective]] = {}
    for one in outcome.collectives:
        for call in (*one.through, one):
            if call.waits or not outcome.peer:
                found.setdefault(_place(call), []).append(call)
    return {place: calls[0] for place, calls in found.items() if len(calls) == 1}


def _place(call: LastCollective) -> _Place:
    return call.key, call.number


def _stands(outcome: RankOutcome, place: _Place) -> bool:
    return any(one.waits and _place(one) == place for one in outcome.collectives)


def _names(outcome: RankOutcome, called: LastCollective) -> bool:
    """The line where it stands names the op."""
    location = outcome.location
    return (
        location is not None
        and _stands(outcome, _place(called))
        and called.op.strip("_") in location.code
    )


def _at(ranks: Sequence[RankOutcome], split: Split) -> str:
    there = [one for one in ranks if _stands(one, _place(split.called))]
    return _line(there[0]) if there else ""


def _line(outcome: RankOutcome) -> str:
    return f" ({outcome.location.place})" if outcome.location else ""
