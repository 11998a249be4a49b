"""What the ranks of a run have told, by groups: each group's first rank gathers those of its own,
and the run's first rank gathers the groups. What many ranks say alike is kept once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from nanodoc.facts.ranks import RankOutcome, order
from nanodoc.report.report import Report
from nanodoc.supervise.wire import packed

GROUP = 32
"""Ranks to a group: with 1 024 ranks, no one reads more than 63 files."""
_LARGEST = 4 * 1024 * 1024  # bytes that one rank tells
_TABLES = ("stats", "frames", "ops", "magnitudes", "graph")
"""The parts of a report that grow with the model, the largest first."""


@dataclass(slots=True)
class Gathered:
    """The outcomes of several ranks, and what their reports found. One report is kept whole: the
    one that the merged report begins with."""

    outcomes: list[RankOutcome] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    """For each outcome the number of its report among `reports`; -1 where there is none."""
    reports: list[Report] = field(default_factory=list)
    """What was found, each once."""
    numbers: dict[Hashable, int] = field(default_factory=dict)
    first: tuple[RankOutcome, Report] | None = None

    def add(self, outcome: RankOutcome, report: Report | None) -> None:
        """One more rank."""
        self._intern(outcome)
        if report is None:
            self.said.append(-1)
            return
        if self.first is None or order(outcome) < order(self.first[0]):
            self.first = outcome, report
        number = self.numbers.setdefault(_what_it_says(report), len(self.reports))
        if number == len(self.reports):
            self.reports.append(_found_by(report))
        self.said.append(number)

    def join(self, other: Gathered) -> None:
        """The ranks of another group."""
        for outcome, report in other.pairs():
            self.add(outcome, report)

    def pairs(self) -> Iterator[tuple[RankOutcome, Report | None]]:
        """Each rank, with what it found."""
        for outcome, number in zip(self.outcomes, self.said, strict=True):
            if self.first is not None and outcome.rank == self.first[0].rank:
                yield outcome, self.first[1]
            else:
                yield outcome, self.reports[number] if number >= 0 else None

    def _intern(self, outcome: RankOutcome) -> None:
        """Digests that are those of the first rank are held once."""
        alike = self.outcomes[0] if self.outcomes else outcome
        for name in ("fingerprints", "before", "batches"):
            if getattr(outcome, name) == getattr(alike, name):
                outcome = replace(outcome, **{name: getattr(alike, name)})
        self.outcomes.append(outcome)


def bounded(outcome: RankOutcome, report: Report) -> bytes:
    """What a rank tells, as a message; tables that make it too large are left out, and the report
    says so."""
    told = packed("end", (outcome, report))
    empty = Report(nanodoc=report.nanodoc, run=report.run)
    left: list[str] = []
    for name in _TABLES:
        if len(told) > _LARGEST and getattr(report, name) != getattr(empty, name):
            left.append(name)
            missing = f"larger than the {_LARGEST >> 20} MiB that a rank may tell"
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
        not_checked=report.not_checked,
        interrupted=report.interrupted,
        broke=report.broke,
        whole=report.whole,
    )
