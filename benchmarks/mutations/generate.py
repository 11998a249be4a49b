"""Makes mutants and keeps those that do harm in plain Python."""

from __future__ import annotations

import ast
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.mutations.kept import digest
from benchmarks.mutations.operators import KINDS, OPERATORS
from benchmarks.mutations.plain import Plain
from benchmarks.mutations.source import Mutation, Source
from benchmarks.mutations.subjects import Layouts, Mutant, Subject

MUTANTS = Path(__file__).with_name("mutants.json")
_COUNTED, _TRIED, _TRIED_BLIND, _EXCEPTIONS = 10, 30, 14, 3  # mutants a script


def sites(source: Source, operator: str) -> list[Mutation]:
    """The operator's mutations of a source, in order, without those that change nothing."""
    found = []
    for mutation in OPERATORS[operator].find(source):
        try:
            ast.parse(mutation.text)
        except SyntaxError:
            continue
        if mutation.text != source.text:
            found.append(mutation)
    return found


def drawn(subject: Subject, texts: dict[str, str]) -> Iterator[tuple[str, str, int, Mutation]]:
    """(file, operator, number of the site, mutation) in a seeded order that goes round the kinds,
    and within each kind round its operators."""
    order = random.Random(digest(subject.name))
    waiting: dict[str, dict[str, list[tuple[str, int, Mutation]]]] = {kind: {} for kind in KINDS}
    for name, operator in sorted(OPERATORS.items()):
        found = [
            (file, number, mutation)
            for file, text in texts.items()
            for number, mutation in enumerate(sites(Source(text, subject.spared), name))
        ]
        order.shuffle(found)
        if found:
            waiting[operator.kind][name] = found
    kinds = list(KINDS)
    order.shuffle(kinds)
    queues = {}
    for kind in kinds:
        names = list(waiting[kind])
        order.shuffle(names)
        rounds = max((len(found) for found in waiting[kind].values()), default=0)
        queues[kind] = [
            (name, *waiting[kind][name][turn])
            for turn in range(rounds)
            for name in names
            if turn < len(waiting[kind][name])
        ]
    while any(queues.values()):
        for kind in kinds:
            if queues[kind]:
                name, file, number, mutation = queues[kind].pop(0)
                yield file, name, number, mutation


def generated(subject: Subject, layouts: Layouts, plain: Plain) -> list[Mutant] | str:
    """The mutants of a script that count, or why there are none."""
    if lacks := layouts.lacks(subject):
        return lacks
    healthy = plain.healthy(subject)
    if isinstance(healthy, str):
        return healthy
    texts = {file: layouts.source(subject, file) for file in subject.files}
    counted: list[Mutant] = []
    seen, tried, kinds = set(), 0, Counter[str]()
    most = _TRIED if healthy.metrics else _TRIED_BLIND  # without a metric only exceptions count
    for file, name, number, mutation in drawn(subject, texts):
        if len(counted) >= _COUNTED or tried >= most:
            break
        if mutation.text in seen or kinds[name] >= 2:
            continue
        seen.add(mutation.text)
        tried += 1
        outcome, metric, exception = plain.harm(subject, healthy, file, mutation.text)
        exceptions = sum(one.outcome == "exception" for one in counted)
        if not outcome or (healthy.metrics and exception and exceptions >= _EXCEPTIONS):
            continue
        kinds[name] += 1
        counted.append(
            Mutant(
                script=subject.name,
                file=file,
                operator=name,
                kind=OPERATORS[name].kind,
                site=number,
                line=mutation.line,
                outcome=outcome,
                healthy=_rounded(healthy.mean),
                spread=_rounded(healthy.spread) if healthy.metrics else None,
                metric=_rounded(metric),
                exception=exception,
                text=digest(mutation.text),
            )
        )
    mean = _rounded(healthy.mean)
    print(
        f"{subject.name}: {len(counted)} of {tried} count; healthy {mean} ± "
        f"{_rounded(healthy.spread)} in {healthy.seconds:.1f} s",
        flush=True,
    )
    return counted


def _rounded(value: float | None) -> float | None:
    return value if value is None or value != value else float(f"{value:.5g}")


def stored() -> list[Mutant]:
    """Those of `mutants.json`."""
    if not MUTANTS.exists():
        return []
    entries = json.loads(MUTANTS.read_text("utf-8"))
    return [Mutant(**{**entry, "metric": _read(entry)}) for entry in entries]


def _read(entry: dict[str, object]) -> float | None:
    value = entry["metric"]
    return float(value) if isinstance(value, str | int | float) else None


def store(mutants: list[Mutant]) -> None:
    """Writes them by script, in the order in which they were drawn."""
    lines = []
    for mutant in mutants:
        entry = asdict(mutant)
        if mutant.metric is not None and not abs(mutant.metric) < float("inf"):
            entry["metric"] = str(mutant.metric)  # JSON has no NaN
        lines.append(json.dumps(entry))
    text = ",\n".join(lines)  # one a line
    MUTANTS.write_text(f"[\n{text}\n]\n", "utf-8")


def generate(chosen: list[Subject], layouts: Layouts, plain: Plain) -> None:
    """Replaces the mutants of these scripts in `mutants.json`, script by script."""
    for subject in chosen:
        found = generated(subject, layouts, plain)
        if isinstance(found, str):
            print(f"{subject.name}: left out: {found}", flush=True)
            found = []
        others = [mutant for mutant in stored() if mutant.script != subject.name]
        store(sorted([*others, *found], key=lambda mutant: mutant.script))
