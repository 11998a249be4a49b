"""Everything that nanodoc finds, as one sorted text file: what a change of the code changed shows
as a difference of two such files.

`scripts/oracle CHECKOUTS --output FILE` runs the clinic's patients, sick and healthy, the scripts
of `realcode.yaml` with and without a planted NaN, and the mutants of `scripts/mutate`. `--against
FILE` compares with an earlier file. Mutants of sealed scripts are told by a digest: a difference
shows, and nothing can be read from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import realcode
from benchmarks.mutations.generate import stored
from benchmarks.mutations.kept import Kept, default_cache, digest, package_digest
from benchmarks.mutations.score import Scorer, brief, each, told
from benchmarks.mutations.subjects import Layouts, subjects
from nanodoc.clinic.catalogue import PATIENTS
from nanodoc.clinic.patient import Patient
from tests.warm import Warm

_SAMPLE = {"patient": 90, "script": 5, "planted": 4, "healthy": 4, "mutant": 16}
"""So many cases of each sort by `--sample`: under five minutes on two cores."""
_JSON = ("--output-format", "json", "--output")


@dataclass(frozen=True, slots=True)
class Case:
    """A training, and how to have it examined."""

    sort: str
    name: str
    content: str
    """What decides the findings besides nanodoc's package."""
    found: Callable[[], list[str]]

    @property
    def line(self) -> str:
        return f"{self.sort} {self.name}"


class _Patients:
    """Runs `nanodoc demo` in processes that have torch already, one for each thread."""

    def __init__(self) -> None:
        self._servers = threading.local()

    def found(self, patient: Patient, healthy: bool) -> list[str]:
        held = vars(self._servers)
        server: Warm = held.setdefault("server", None) or Warm()
        held["server"] = server
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            options = ["--healthy"] if healthy else []
            server.run(("demo", patient.name, *options, *_JSON, str(file)), Path(folder), None)
            return told(brief(json.loads(file.read_text())) if file.exists() else None)


def _patients(cases: _Patients) -> Iterator[Case]:
    for patient in PATIENTS:
        text = Path(patient.entrypoint().rpartition(":")[0]).read_text("utf-8")
        for healthy in (False, True):
            name = f"{patient.name} {'healthy' if healthy else 'sick'}"
            yield Case("patient", name, text, _bound(cases.found, patient, healthy))


def _bound(call: Callable[..., list[str]], *arguments: Any) -> Callable[[], list[str]]:
    return lambda: call(*arguments)


def _scripts(checkouts: Path, layouts: Layouts) -> Iterator[Case]:
    for script in realcode.scripts():
        if not script.is_there(checkouts):
            continue
        for plant in (False, True) if script.plant else (False,):
            content = f"{script} {layouts.data(script)}"
            sort = "planted" if plant else "script"
            yield Case(sort, script.name, content, _bound(_of_script, script, checkouts, plant))


def _of_script(script: realcode.Script, checkouts: Path, plant: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "same"
        try:
            realcode.laid_out(script, checkouts, copy, plant=plant)
            report = realcode.run(script, copy, watched=True).report
        except (subprocess.TimeoutExpired, StopIteration):
            report = None
    return told(brief(report) if report is not None else None)


def _mutants(layouts: Layouts, scorer: Scorer) -> Iterator[Case]:
    there = {one.name: one for one in subjects() if not layouts.lacks(one)}
    mutants = [mutant for mutant in stored() if mutant.script in there]
    for name, subject in there.items():
        if any(mutant.script == name for mutant in mutants):
            content = layouts.source(subject, subject.files[0]) + subject.script.command
            yield Case("healthy", name, content, _bound(lambda s: told(scorer.healthy(s)), subject))
    for mutant in mutants:
        call = _bound(_of_mutant, scorer, there[mutant.script], mutant)
        yield Case("mutant", f"{mutant.script}: {mutant.name}", mutant.text, call)


def _of_mutant(scorer: Scorer, subject: Any, mutant: Any) -> list[str]:
    try:
        seen = scorer.mutant(subject, mutant)
    except LookupError:
        return ["no longer the same"]
    if subject.sealed:
        return [f"sealed {seen['digest']}"]
    return told(seen["findings"] if seen["report"] else None)


def sample(cases: Iterable[Case]) -> list[Case]:
    """Always the same ones, by a hash of their names."""
    by_sort: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_sort[case.sort].append(case)
    drawn = []
    for sort, some in by_sort.items():
        some.sort(key=lambda case: hashlib.sha256(case.line.encode()).digest())
        drawn += some[: _SAMPLE[sort]]
    return drawn


def observed(cases: list[Case], cache: Path, jobs: int) -> list[str]:
    """A line for each finding of each case, sorted. What was found before is not run again."""
    kept, package = Kept(cache / "oracle"), package_digest()

    def lines(case: Case) -> list[str]:
        key = digest(package, case.line, case.content)
        known = kept.get(key)
        if known is None:
            known = case.found()
            kept.put(key, known)
        return [f"{case.line}\t{one}" for one in known]

    return sorted(line for some in each(lines, cases, jobs) for line in some)


def differences(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """What went, appeared and moved: a case that lost one finding and got another moved. Cases
    that only one of both has are not compared."""
    found = [_by_case(lines) for lines in (before, after)]
    told_ = []
    for case in sorted(found[0].keys() & found[1].keys()):
        old, new = (list(one[case]) for one in found)
        for line in list(old):
            if line in new:
                old.remove(line)
                new.remove(line)
        while old and new:
            told_.append(f"moved     {case}: {old.pop(0)}  →  {new.pop(0)}")
        told_ += [f"went      {case}: {line}" for line in old]
        told_ += [f"appeared  {case}: {line}" for line in new]
    only = [len(found[0].keys() - found[1].keys()), len(found[1].keys() - found[0].keys())]
    if any(only):
        told_.append(
            f"not compared: {only[0]} cases are only in the first, {only[1]} in the second"
        )
    return told_


def _by_case(lines: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        case, _, finding = line.partition("\t")
        if finding and finding != "no finding":
            found[case].append(finding)
        elif finding:
            found.setdefault(case, [])
    return found


def main() -> None:
    """Entry point of `scripts/oracle`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, help="holds `examples` and `nanoGPT`")
    parser.add_argument("--output", type=Path, help="where the lines go; else to the terminal")
    parser.add_argument("--against", type=Path, help="an earlier output to compare with")
    parser.add_argument("--sample", action="store_true", help="only some cases, always the same")
    parser.add_argument("--only", default="", help="part of the names of cases")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=default_cache())
    given = parser.parse_args()
    layouts = Layouts(given.checkouts, given.cache)
    scorer = Scorer(layouts, given.cache)
    cases = [
        *_patients(_Patients()),
        *_scripts(given.checkouts, layouts),
        *_mutants(layouts, scorer),
    ]
    cases = sample(cases) if given.sample else cases
    lines = observed([one for one in cases if given.only in one.line], given.cache, given.jobs)
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", "utf-8")
    if given.against:
        before = given.against.read_text("utf-8").splitlines()
        print("\n".join(differences(before, lines)) or "no difference")
    elif not given.output:
        print("\n".join(lines))
