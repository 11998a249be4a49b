"""What the ranks of a run have told, by groups: each group's first rank gathers those of its own,
and the run's first rank gathers the groups. What many ranks say alike is kept once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from nanodoc.facts.ranks import RankOutcome, order
from nanodoc.report.report import Report
from nanodoc.supervise.wire import packed

GROUP = 32
"""Ranks to a group: with 1 024 ranks, no one reads more than 63 files."""
Pair = tuple[RankOutcome, Report | None]
_DIGESTS = ("fingerprints", "before", "batches")
_LARGEST = 4 * 1024 * 1024  # bytes that one rank tells
_TABLES = ("stats", "frames", "ops", "magnitudes", "graph")
"""The parts of a report that grow with the model, the largest first."""


class Gathered:
    """Each of several ranks with what it found. One report is kept whole: the one that the merged
    report begins with."""

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._found: dict[Hashable, Report] = {}
        """What reports found, each once."""
        self._first: Pair | None = None

    def add(self, outcome: RankOutcome, report: Report | None) -> None:
        """One more rank."""
        outcome = self._with_known_digests(outcome)
        if report is None:
            self._pairs.append((outcome, None))
            return
        if self._first is None or order(outcome) < order(self._first[0]):
            self._first = outcome, report
        found = self._found.setdefault(_what_it_says(report), _found_by(report))
        self._pairs.append((outcome, found))

    def pairs(self) -> list[Pair]:
        """In the order in which they were added."""
        whole = self._first[0] if self._first is not None else None
        return [self._first if pair[0] is whole and self._first else pair for pair in self._pairs]

    def _with_known_digests(self, outcome: RankOutcome) -> RankOutcome:
        """Those that the first rank has told, too, are held once."""
        first = self._pairs[0][0] if self._pairs else outcome
        alike = {name: getattr(first, name) for name in _DIGESTS}
        return replace(outcome, **{n: v for n, v in alike.items() if v == getattr(outcome, n)})


def bounded(outcome: RankOutcome, report: Report) -> bytes:
    """What a rank tells, as a message; tables that make it too large are left out, and the report
    says so."""
    told = packed("end", (outcome, report))
    empty = Report(nanodoc=report.nanodoc, run=report.run)
    left: list[str] = []
    for name in _TABLES:
        if len(told) > _LARGEST and getattr(report, name) != getattr(empty, name):
            left.append(name)
            missing = f"larger than the {_LARGEST >> 20} MiB that a rank may send"
            lines = [pair for pair in report.not_checked if pair[1] != missing]
            tables = f"the tables of rank {outcome.rank} ({', '.join(left)})"
            changed: dict[str, Any] = {name: getattr(empty, name)}
            report = replace(report, not_checked=(*lines, (tables, missing)), **changed)
            told = packed("end", (outcome, report))
    return told


def _what_it_says(report: Report) -> Hashable:
    return (
        tuple(finding.fingerprint for finding in report.findings),
        report.not_checked,
        report.interrupted,
        report.broke,
        report.whole,
    )


def _found_by(report: Report) -> Report:
    """What of a report is merged with others."""
    return Report(
        nanodoc=report.nanodoc,
        run=report.run,
        findings=report.findings,
        checked=report.checked,
        not_checked=report.not_checked,
        unjudged=report.unjudged,
        interrupted=report.interrupted,
        broke=report.broke,
        whole=report.whole,
        looked=report.looked,
    )
