"""The clinic's patients with their model, or their loss function, compiled: the finding should be
the same at the same line as uncompiled, their healthy twins should have none, and the losses should
be those of the compiled training without nanodoc.

`scripts/compiled` takes a sample of the patients; `--all` takes every one. Judged are the patients
whose compiled training compiles a graph, and ends as the uncompiled one does without nanodoc.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo as dynamo

from nanodoc.clinic.catalogue import PATIENTS
from nanodoc.clinic.patient import Patient
from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from nanodoc.report.report import Report

WAYS = ("model", "loss")
_LOSSES = ("loss_fn", "criterion")
_USUAL = {"model", "data", "loss_fn", "criterion", "optimizer"}
_NOT_COMPILED = "nothing was compiled"
_ENTRY = """
from benchmarks.compiled import loaded, compiled
patient = loaded({name!r}, {file!r})
def build():
    return compiled(patient.{build}(), {way!r}, {backend!r})
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """How one patient or twin came out."""

    name: str
    way: str
    outcome: str
    """"same", "no finding", "other finding", "other line", "alarm", "other losses", or why it does
    not count."""
    detail: str = ""

    @property
    def counts(self) -> bool:
        return self.outcome not in (_NOT_COMPILED, "raises when compiled", "no loss function")


def compiled(recipe: Any, way: str, backend: str) -> Any:
    """The recipe of a patient with one part compiled."""
    if way == "model":
        recipe["model"] = torch.compile(recipe["model"], backend=backend)
    for name in _LOSSES if way == "loss" else ():
        if recipe.get(name) is not None:
            recipe[name] = torch.compile(recipe[name], backend=backend)
    return recipe


def judged(patient: Patient, way: str, backend: str, folder: Path) -> Iterator[Judged]:
    """The patient's outcome, and its twin's."""
    for healthy in (False, True):
        name = f"{patient.name} {'healthy' if healthy else 'sick'}"
        entry = patient.entrypoint(healthy=healthy)
        file, _, build = entry.rpartition(":")
        made = getattr(loaded(patient.file, file), build)
        recipe = made()
        if way == "loss" and not any(recipe.get(one) for one in _LOSSES):
            yield Judged(name, way, "no loss function")
            continue
        config = replace(Config(device="cpu"), **patient.options)
        plain = _examined(entry, config)
        text = _ENTRY.format(name=patient.file, file=file, build=build, way=way, backend=backend)
        path = folder / f"{patient.file}_{way}.py"
        path.write_text(text)
        dynamo.reset()
        dynamo.utils.counters.clear()
        seen = _examined(f"{path}:build", config)
        if not dynamo.utils.counters["stats"].get("unique_graphs"):
            yield Judged(name, way, _NOT_COMPILED)
            continue
        dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raises = _raises(compiled(made(), way, backend))
            if raises and not _raises(made()):
                yield Judged(name, way, "raises when compiled")
                continue
            losses = _alone(compiled(made(), way, backend), len(seen.vitals.losses))
        if losses is not None and losses != seen.vitals.losses:
            yield Judged(name, way, "other losses", f"{losses[-1]} {seen.vitals.losses[-1]}")
            continue
        yield _compared(name, way, plain, seen)


def loaded(name: str, file: str) -> ModuleType:
    """The patient's module; a compiler imports it by its name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _examined(entry: str, config: Config) -> Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = run_training(entry, config)
    torch.set_grad_enabled(True)  # a patient switches gradients off for good
    return report


def _raises(recipe: Any) -> bool:
    """Its first step does, without nanodoc."""
    model, optimizer = recipe["model"], recipe.get("optimizer")
    try:
        batch = next(iter(recipe["data"]))
        if (step := recipe.get("train_step")) is not None:
            arguments = (model, batch, optimizer, recipe.get("scaler"))
            step(*arguments[: step.__code__.co_argcount])
        elif "criterion" in recipe:
            recipe["criterion"](model(batch[0]), batch[1]).backward()
        else:
            recipe["loss_fn"](model, batch).backward()
    except Exception:  # of whatever kind
        return True
    return False


def _alone(recipe: Any, steps: int) -> tuple[float, ...] | None:
    """The losses of a training without nanodoc; None of one that does more than the usual."""
    if not recipe.keys() <= _USUAL:
        return None
    model, optimizer = recipe["model"], recipe["optimizer"]
    losses: list[float] = []
    batches: Iterator[Any] = iter(())
    while len(losses) < steps:
        batch = next(batches, None)
        if batch is None:
            batches = iter(recipe["data"])
            continue
        optimizer.zero_grad()
        if "criterion" in recipe:
            loss = recipe["criterion"](model(batch[0]), batch[1])
        else:
            loss = recipe["loss_fn"](model, batch)
        losses.append(loss.item())
        if losses[-1] != losses[-1] or losses[-1] in (float("inf"), -float("inf")):
            break
        loss.backward()
        optimizer.step()
    return tuple(losses)


def _compared(name: str, way: str, plain: Report, seen: Report) -> Judged:
    first, again = (_first(report) for report in (plain, seen))
    if first == again:
        return Judged(name, way, "same")
    if first is None:
        return Judged(name, way, "alarm", str(again))
    if again is None:
        return Judged(name, way, "no finding", str(first))
    outcome = "other line" if first[0] == again[0] else "other finding"
    return Judged(name, way, outcome, f"{first} {again}")


def _first(report: Report) -> tuple[str, str] | None:
    """(code, line) of the first finding."""
    if not report.findings:
        return None
    finding = report.findings[0]
    where = finding.culprit.location
    return finding.code, f"{Path(where.file).name}:{where.line}" if where is not None else ""


def sample(number: int) -> list[Patient]:
    """Always the same ones, by a hash of their names."""
    alive = [patient for patient in PATIENTS if not patient.dies]
    alive.sort(key=lambda patient: hashlib.sha256(patient.name.encode()).digest())
    return alive[:number]


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--patients", type=int, default=40)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seconds", type=float, default=600.0, help="no patient begins after them")
    arguments = parser.parse_args()
    until, found = time.monotonic() + arguments.seconds, []
    with tempfile.TemporaryDirectory() as folder:
        for patient in sample(len(PATIENTS) if arguments.all else arguments.patients):
            for way in WAYS:
                if time.monotonic() > until:
                    break
                for one in judged(patient, way, arguments.backend, Path(folder)):
                    found.append(one)
                    if one.outcome != "same":
                        say(f"{one.way:6} {one.name:36} {one.outcome} {one.detail}")
    say(table(found))


def table(found: list[Judged]) -> str:
    """One row for each way and sort."""
    rows = ["compiled  of         same  counted"]
    for way in WAYS:
        for sort in ("sick", "healthy"):
            some = [one for one in found if one.way == way and one.name.endswith(sort)]
            outcomes = Counter(one.outcome for one in some if one.counts)
            rows.append(f"{way:9} {sort:9} {outcomes['same']:5} {sum(outcomes.values()):8}")
    return "\n".join(rows)
