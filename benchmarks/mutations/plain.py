"""Runs of a script in plain Python, and what they say of a mutant: whether it does harm."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks import realcode
from benchmarks.mutations.kept import Kept, digest
from benchmarks.mutations.subjects import Layouts, Subject
from tests.warm import PYTHON, Warm

_BARE = Path(__file__).with_name("bare.py")
_SITE = Path(realcode.__file__).with_name("realcode_site")
_NOT_RUN = ("SyntaxError", "NameError", "ImportError", "ModuleNotFoundError", "UnboundLocalError")
_SEEDS, _MORE_SEEDS = (0, 1, 2, 3, 4), (1, 2)
LONGEST = 60  # seconds of a healthy run; four times as many of a mutant's
_LEAST = 0.02  # of the healthy metric: less is no harm, however small the spread


@dataclass(frozen=True, slots=True)
class Ended:
    """How a plain run ended."""

    status: int
    metric: float | None
    exception: str
    """The type of what was raised in the training, empty where nothing was."""
    crashed_before: bool
    seconds: float
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class Healthy:
    """The unchanged script over five seeds."""

    metrics: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float | None:
        return mean(self.metrics) if self.metrics else None

    @property
    def spread(self) -> float:
        """The range, but at least a small part of the mean."""
        if not self.metrics:
            return math.inf
        return max(max(self.metrics) - min(self.metrics), _LEAST * abs(mean(self.metrics)))


class Plain:
    """Runs scripts, and keeps how they ended."""

    def __init__(self, layouts: Layouts, cache: Path) -> None:
        self._layouts, self._kept = layouts, Kept(cache / "plain")
        self._servers = threading.local()

    def run(self, subject: Subject, changed: dict[str, str], *, seed: int, seconds: float) -> Ended:
        """One run with these texts in the place of some files."""
        texts = [f"{file}\0{text}" for file, text in sorted(changed.items())]
        whole = self._layouts.source(subject, subject.files[0]) + self._layouts.data(subject.script)
        key = digest(
            subject.name, subject.script.command, subject.script.steps, seed, whole, *texts
        )
        known = self._kept.get(key)
        if known is not None and (known["status"] >= 0 or known["seconds"] >= seconds):
            return Ended(**{**known, "metric": _number(known["metric"])})
        with tempfile.TemporaryDirectory() as scratch:
            ended = self._run(subject, changed, Path(scratch), seed, seconds)
        if changed or not ended.status:  # what a healthy run lacked may be there next time
            self._kept.put(key, {**asdict(ended), "metric": _text(ended.metric)})
        return ended

    def _run(
        self, subject: Subject, changed: dict[str, str], scratch: Path, seed: int, seconds: float
    ) -> Ended:
        self._layouts.into(scratch / "same", subject, changed)
        result = scratch / "result.json"
        script = subject.script
        variables = {
            **script.environment,
            **realcode.environment(script, scratch / "sums"),
            "MUTATION_SEED": str(seed),
            "MUTATION_SECONDS": str(math.ceil(seconds)),
            "MUTATION_RESULT": str(result),
            "MUTATION_BESIDE": str(_SITE),
        }
        first, *own = script.command.split()
        status, out, err = self._server(subject.warm).run(
            (PYTHON, str(_BARE), first, *own), scratch / "same" / script.folder, None, variables
        )
        told = json.loads(result.read_text()) if result.exists() else None
        if told is None:  # ended by a signal: out of time
            return Ended(-9, None, "", False, seconds)
        raised = told["exception"]
        trained = told["training"] and raised not in _NOT_RUN
        metric = subject.measured(out.decode(errors="replace"))
        words = err.decode(errors="replace").strip()[-300:] if raised else ""
        return Ended(
            status,
            metric,
            raised if trained else "",
            bool(raised) and not trained,
            told["seconds"],
            words,
        )

    def _server(self, modules: Sequence[str]) -> Warm:
        """This thread's process with these modules; another one is ended first."""
        held = vars(self._servers)
        if held.get("modules") != tuple(modules):
            if "server" in held:
                held["server"].close()
            held.update(modules=tuple(modules), server=Warm("numpy", *modules))
        server: Warm = held["server"]
        return server

    def healthy(self, subject: Subject) -> Healthy | str:
        """Its metric over five seeds, or why the script cannot be used."""
        metrics, seconds = [], 0.0
        for seed in _SEEDS if subject.metric else _SEEDS[:1]:
            ended = self.run(subject, {}, seed=seed, seconds=LONGEST)
            if ended.status or ended.exception or ended.crashed_before:
                return f"its plain run failed (seed {seed}): {ended.last_words or 'out of time'}"
            if subject.metric and (ended.metric is None or not math.isfinite(ended.metric)):
                return f"its plain run printed no metric (seed {seed})"
            seconds = max(seconds, ended.seconds)
            if ended.metric is not None:
                metrics.append(ended.metric)
        return Healthy(tuple(metrics), seconds)

    def harm(
        self, subject: Subject, healthy: Healthy, file: str, text: str
    ) -> tuple[str, float | None, str]:
        """(`worse`, `nan`, `exception` or empty; the metric; the exception's type)."""
        most = max(4 * healthy.seconds, 4.0)
        first = self.run(subject, {file: text}, seed=0, seconds=most)
        if first.exception:
            return "exception", None, first.exception
        if first.crashed_before or first.status < 0 or first.metric is None or not healthy.metrics:
            return "", None, ""
        if not math.isfinite(first.metric):
            return "nan", first.metric, ""
        metric, worse = first.metric, _worse(subject, healthy, first.metric)
        if healthy.spread / 2 < worse < 2 * healthy.spread:  # near the border
            more = [
                self.run(subject, {file: text}, seed=seed, seconds=most).metric
                for seed in _MORE_SEEDS
            ]
            metric = median([metric, *(one for one in more if one is not None)])
            worse = _worse(subject, healthy, metric)
        return ("worse" if worse > healthy.spread else ""), metric, ""


def _worse(subject: Subject, healthy: Healthy, metric: float) -> float:
    """By how much it is worse than the healthy mean."""
    assert healthy.mean is not None
    difference = healthy.mean - metric
    return difference if subject.better == "higher" else -difference


def _text(metric: float | None) -> str:
    """For JSON, which has no NaN."""
    return "" if metric is None else repr(metric)


def _number(text: str) -> float | None:
    return float(text) if text else None
