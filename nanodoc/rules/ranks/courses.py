"""Where the gradients or the weights of several ranks part that should be the same, by the digests
of some steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanodoc.facts.ranks import RankCourse, RankOutcome, RankStep

STARTED = "started with other weights"
UNREDUCED = "gradients are not reduced"
WRONG = "a reduction arrives wrong"
CHANGED = "gradients are changed before the step"
RATES = "other learning rates"
UPDATED = "another update"
WRITTEN = "written after the step"
EARLIER = "in a step before"
_SHOWN_AGAIN = (UNREDUCED, WRONG, CHANGED, RATES)
"""What weights that have parted already do not bring about."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first step at which ranks part, and in what."""

    kind: str
    step: int
    names: tuple[str, ...]
    """The parameters that part there."""
    of: int
    """Parameters that should be the same."""
    ranks: tuple[int, ...]
    """Those that differ from most; the last one where no two are the same."""
    rates: tuple[float, ...] = ()
    """The first rate of each rank."""
    idle: bool = False
    """No rank entered a collective in the step."""
    wrapped: bool = False
    """A DistributedDataParallel is to keep all of them the same."""
    through: bool = False
    """The step called one."""
    rows: tuple[int, int] = (1, 1)
    """(steps that were looked at in which these parameters' weights end apart, all of them)"""


_Rows = list[tuple[int, list[RankStep]]]


def parting(ranks: Sequence[RankOutcome]) -> Parting | None:
    """None where the ranks are not known to be meant alike, or stay so."""
    courses = [rank.course for rank in ranks if rank.course is not None]
    if len(courses) < len(ranks) or any(course.kept_apart for course in courses):
        return None
    names = courses[0].names
    if any(course.names != names for course in courses):
        return None
    rows = _common(courses)
    if not rows:
        return None
    numbers = [rank.rank for rank in ranks]
    wrapped = [i for i, kept in enumerate(courses[0].wrapped) if kept]
    started = started_alike(ranks, names)
    reduced = [i for i in range(len(names)) if _is_reduced(rows, i)]
    apart = [i for i in reduced if started[i] is False]
    # shards begin apart, too, and get gradients of their own
    stay = [i for i in apart if all(_alike([o.used[i] for o in row]) for _, row in rows)]
    stay = [i for i in stay if not any(_alike([o.end[i] for o in row]) for _, row in rows)]
    if apart and stay == apart:
        held = [one.end for one in rows[0][1]]
        told = _told(STARTED, 0, names, apart, len(reduced), held, numbers)
        return replace(told, rows=(len(rows), len(rows)))
    meant = sorted({*wrapped, *(i for i in reduced if started[i])})
    found = _first(rows, names, meant, numbers) if meant else None
    if found is None:
        return None
    own = [names.index(name) for name in found.names]
    ends = [any(not _alike([o.end[i] for o in row]) for i in own) for _, row in rows]
    return replace(found, wrapped=all(i in wrapped for i in own), rows=(sum(ends), len(rows)))


def _first(
    rows: _Rows, names: tuple[str, ...], meant: list[int], numbers: list[int]
) -> Parting | None:
    seen = [_at(step, row, names, meant, numbers) for step, row in rows]
    for (step, row), found in zip(rows, seen, strict=True):
        begun = [i for i in meant if not _alike([one.begin[i] for one in row])]
        if begun:
            # in a step that was not looked at, as the first one; another one may show the same
            again = (one for one in seen if one is not None and one.kind in _SHOWN_AGAIN)
            held = [one.begin for one in row]
            told = _told(EARLIER, step, names, begun, len(meant), held, numbers)
            return next(again, told)
        if found is not None:
            return found
    return None


def _at(
    step: int,
    row: list[RankStep],
    names: tuple[str, ...],
    meant: list[int],
    numbers: list[int],
) -> Parting | None:
    for part in ("used", "stepped", "end"):
        held = [getattr(one, part) for one in row]
        apart = [i for i in meant if not _alike([values[i] for values in held])]
        if not apart:
            continue
        kind = _kind(part, row, apart, meant)
        rates = tuple(one.rates[0] if one.rates else 0.0 for one in row)
        told = _told(kind, step, names, apart, len(meant), held, numbers, rates)
        return replace(
            told,
            idle=all(one.collectives == 0 for one in row),
            through=any(one.through for one in row),
        )
    return None


def _kind(part: str, row: list[RankStep], apart: list[int], meant: list[int]) -> str:
    if part == "used":
        before = [i for i in apart if not _alike([one.backward[i] for one in row])]
        if not before:
            return CHANGED
        return UNREDUCED if len(before) == len(meant) else WRONG
    if part == "stepped":
        return RATES if len({one.rates for one in row}) > 1 else UPDATED
    return WRITTEN


def _told(
    kind: str,
    step: int,
    names: tuple[str, ...],
    apart: list[int],
    of: int,
    held: list[tuple[int, ...]],
    numbers: list[int],
    rates: tuple[float, ...] = (),
) -> Parting:
    first = [values[apart[0]] for values in held]
    usual, times = Counter(first).most_common(1)[0]
    odd = [n for n, value in zip(numbers, first, strict=True) if value != usual]
    if times == 1 or not odd:
        odd = numbers[-1:]
    return Parting(kind, step, tuple(names[i] for i in apart), of, tuple(odd), rates)


def _common(courses: Sequence[RankCourse]) -> _Rows:
    """The steps that all ranks have digests of."""
    by_step = [{one.step: one for one in course.steps} for course in courses]
    steps = sorted(set.intersection(*(set(one) for one in by_step)))
    return [(step, [one[step] for one in by_step]) for step in steps]


def _alike(values: Sequence[int]) -> bool:
    return len(set(values)) == 1


def _is_reduced(rows: _Rows, i: int) -> bool:
    """Every rank had the same gradient of a parameter, when backward had ended or when it was
    clipped or used, in the first step that was looked at; and had one."""
    row = rows[0][1]
    if any(one.collectives == 0 for one in row):
        return False  # of the same batch, without any reduction
    return any(
        _alike([getattr(one, part)[i] for one in row]) and getattr(row[0], part)[i] != 0
        for part in ("backward", "used")
    )


def started_alike(ranks: Sequence[RankOutcome], names: Sequence[str]) -> list[bool | None]:
    """By parameter: every rank began with the same values of it; None where that is not known."""
    before = [{key.partition(" [")[0]: digest for key, digest in rank.before} for rank in ranks]
    return [
        len({one[name] for one in before}) == 1 if all(name in one for one in before) else None
        for name in names
    ]
