"""Runs nanodoc on the mutants and on the healthy scripts, and counts what it says."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import realcode
from benchmarks.mutations.generate import sites
from benchmarks.mutations.judge import CLASSES, causes, judged, loud
from benchmarks.mutations.kept import ROOT, Kept, digest, package_digest
from benchmarks.mutations.source import Mutation, Source
from benchmarks.mutations.subjects import Layouts, Mutant, Subject

_FIELDS = ("code", "severity", "title", "explanation")


class Scorer:
    """Reports on scripts and mutants, kept by the content of nanodoc's package."""

    def __init__(self, layouts: Layouts, cache: Path) -> None:
        self._layouts, self._package = layouts, package_digest()
        self._kept = Kept(cache / "reports")
        self.first_steps: dict[str, str] = {}
        """How the first step of each healthy script came out when nanodoc ran it again."""

    def findings(self, subject: Subject, changed: dict[str, str]) -> list[dict[str, Any]] | None:
        """What nanodoc finds in the script; None where it made no report. Nothing is kept."""
        report = self._report(subject, changed)
        return None if report is None else brief(report)

    def _report(self, subject: Subject, changed: dict[str, str]) -> dict[str, Any] | None:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "same"
            self._layouts.into(copy, subject, changed)
            try:
                return realcode.run(subject.script, copy, watched=True).report
            except subprocess.TimeoutExpired:
                return None

    def healthy(self, subject: Subject) -> list[dict[str, Any]] | None:
        """All findings on the unchanged script; None where nanodoc made no report."""
        source = self._layouts.source(subject, subject.files[0])
        source += self._layouts.data(subject.script)
        key = digest(self._package, subject.name, subject.script.command, source)
        known = self._kept.get(key)
        if known is None:
            report = self._report(subject, {})
            known = {"findings": None if report is None else brief(report)}
            known["first step"] = first_step(report or {})
            self._kept.put(key, known)
        self.first_steps[subject.name] = known["first step"]
        found: list[dict[str, Any]] | None = known["findings"]
        return found

    def mutant(self, subject: Subject, mutant: Mutant) -> dict[str, Any]:
        """Its class and a digest of its findings, and the findings where its script is open."""
        mutation = self.mutation(subject, mutant)
        decides = [subject.script.command, mutant.text + self._layouts.data(subject.script)]
        if subject.sealed:  # its report is gone: it can't be judged anew by other causes or lines
            decides += [causes()[mutant.operator], *map(str, sorted(mutation.right))]
        key = digest(self._package, mutant.script, *decides)
        known: dict[str, Any] | None = self._kept.get(key)
        if known is None:
            found = self.findings(subject, {mutant.file: mutation.text})
            known = observed(subject, mutant, mutation, found)
            self._kept.put(key, known)
        if "findings" in known:  # judged anew: the table of causes may have changed
            known["class"] = judged(mutant, mutation, known["findings"])
        return known

    def mutation(self, subject: Subject, mutant: Mutant) -> Mutation:
        """The mutant, made again. Raises `LookupError` where the script is another by now."""
        text = self._layouts.source(subject, mutant.file)
        found = sites(Source(text, subject.spared), mutant.operator)
        if mutant.site >= len(found) or digest(found[mutant.site].text) != mutant.text:
            raise LookupError(f"{mutant.script}: {mutant.name} is no longer the same")
        return found[mutant.site]

    def score(
        self, chosen: Sequence[Subject], mutants: Sequence[Mutant], *, jobs: int, limit: int = 0
    ) -> dict[str, Any]:
        """The class of each mutant, and the false alarms on the healthy scripts."""
        lacking = {one.name: self._layouts.lacks(one) for one in chosen}
        there = {one.name: one for one in chosen if not lacking[one.name]}
        left_out = [f"{name}: {why}" for name, why in lacking.items() if why]
        mutants = [mutant for mutant in mutants if mutant.script in there]
        if limit:
            mutants = _drawn(mutants, there, limit)
        names = {mutant.script for mutant in mutants}
        healthy = [subject for name, subject in there.items() if name in names]
        alarms = [
            {"script": subject.name, "findings": [_place(one) for one in loud(found or [])]}
            for subject, found in zip(healthy, each(self.healthy, healthy, jobs), strict=True)
            if loud(found or [])
        ]
        rows = []
        pairs = [(there[mutant.script], mutant) for mutant in mutants]
        for (subject, mutant), seen in zip(
            pairs, each(lambda pair: self._class_of(*pair), pairs, jobs), strict=True
        ):
            rows.append(
                {
                    "script": mutant.script,
                    "kind": mutant.kind,
                    "operator": mutant.operator,
                    "mutant": mutant.name,
                    "sealed": subject.sealed,
                    "class": seen,
                }
            )
        return {
            "package": self._package,
            "mutants": [row for row in rows if row["class"] != "gone"],
            "gone": [f"{row['script']}: {row['mutant']}" for row in rows if row["class"] == "gone"],
            "healthy scripts": len(healthy),
            "first steps": {subject.name: self.first_steps[subject.name] for subject in healthy},
            "false alarms": alarms,
            "left out": left_out,
        }

    def _class_of(self, subject: Subject, mutant: Mutant) -> str:
        try:
            return str(self.mutant(subject, mutant)["class"])
        except LookupError:
            return "gone"


def brief(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a report's findings what is judged and compared."""
    return [
        {
            **{name: finding[name] for name in _FIELDS},
            "culprit": {"location": realcode.location(finding)},
        }
        for finding in report["findings"]
    ]


def first_step(report: dict[str, Any]) -> str:
    """How a script's first step came out when it was run again: `bitwise`, `rounding`, or what the
    report says instead."""
    told = str(report.get("run", {}).get("step_found", "no step was found"))
    words = {"bitwise the same": "bitwise", "the same up to rounding": "rounding"}
    found = next((short for text, short in words.items() if text in told), None)
    return found or (told.partition(", ")[2] or told)


def observed(
    subject: Subject, mutant: Mutant, mutation: Mutation, found: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """What is kept of a report: of a sealed script's mutant only the class and a digest, from
    which a difference shows and nothing can be read."""
    kept: dict[str, Any] = {
        "class": judged(mutant, mutation, found or []),
        "digest": digest(*told(found)),
    }
    return (
        kept if subject.sealed else {**kept, "findings": found or [], "report": found is not None}
    )


def each(call: Callable[[Any], Any], values: Iterable[Any], jobs: int) -> list[Any]:
    """The results of the calls, so many at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(call, values))


def _drawn(mutants: Sequence[Mutant], there: dict[str, Subject], limit: int) -> list[Mutant]:
    """So many of the open and of the sealed half, by a hash of what they are."""
    order = sorted(
        mutants, key=lambda one: hashlib.sha256(f"{one.script} {one.text}".encode()).digest()
    )
    halves = [[one for one in order if there[one.script].sealed is half] for half in (False, True)]
    return [one for half in halves for one in half[:limit]]


def told(found: list[dict[str, Any]] | None) -> list[str]:
    """One line a finding: code, severity, place and title."""
    if found is None:
        return ["no report"]
    return [f"{_place(one, one['severity'])} {one['title']}" for one in found] or ["no finding"]


def _place(finding: dict[str, Any], *more: str) -> str:
    place = realcode.location(finding)
    file = place.get("file", "").removeprefix(f"{ROOT}/")
    return " ".join([finding["code"], *more, f"{file}:{place.get('line', '')}"])


def rates(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Each class as a share of the rows, in per cent."""
    counts = Counter(row["class"] for row in rows)
    return {one: 100 * counts[one] / max(len(rows), 1) for one in CLASSES}


def table(score: dict[str, Any]) -> str:
    """The score as text."""
    rows = score["mutants"]
    lines = [_line("", ["mutants", *CLASSES])]
    halves = [("all", rows)]
    halves += [
        (name, [row for row in rows if row["sealed"] is sealed])
        for name, sealed in (("open", False), ("sealed", True))
    ]
    lines += [_counted(name, some) for name, some in halves]
    for field in ("kind", "operator"):
        for half, some in halves[1:]:
            lines += ["", f"{half}, by {field}"]
            for name in sorted({row[field] for row in some}):
                lines.append(_counted(name, [row for row in some if row[field] == name]))
    right = [rates(some)["right"] for _, some in halves[1:]]
    silent = [rates(some)["missed"] for _, some in halves[1:]]
    lines += ["", f"open − sealed: right {right[0] - right[1]:+.1f}, missed "]
    lines[-1] += f"{silent[0] - silent[1]:+.1f} percentage points"
    steps, usual = score["first steps"], ("bitwise", "rounding")
    counts = Counter(told if told in usual else "other" for told in steps.values())
    lines += ["", "first step of the healthy scripts, run again: "]
    lines[-1] += ", ".join(f"{name} {counts[name]}" for name in (*usual, "other"))
    lines += [f"  {name}: {told}" for name, told in steps.items() if told not in usual]
    alarms = score["false alarms"]
    lines += ["", f"false alarms: {len(alarms)} of {score['healthy scripts']} healthy scripts"]
    lines += [f"  {one['script']}: {', '.join(one['findings'])}" for one in alarms]
    lines += [f"left out: {why}" for why in score["left out"]]
    lines += [f"no longer the same, left out: {name}" for name in score["gone"]]
    return "\n".join(lines)


def _counted(name: str, rows: Sequence[dict[str, Any]]) -> str:
    counts = Counter(row["class"] for row in rows)
    cells = [str(len(rows))]
    cells += [f"{counts[one]} ({share:.0f} %)" for one, share in rates(rows).items()]
    return _line(name, cells)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<30}" + "".join(f"{cell:>13}" for cell in cells)
