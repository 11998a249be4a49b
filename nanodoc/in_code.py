"""nanodoc in a program of one's own: `watch` around a training loop, for notebooks, and `examine`
of a recipe, for tests."""

from __future__ import annotations

import ast
import html
import linecache
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

import torch

from nanodoc.config import Config, load_config
from nanodoc.errors import UsageError
from nanodoc.pipeline.after_run import prepared
from nanodoc.pipeline.merged import merged_report
from nanodoc.pipeline.ranks import outcome_of_rank
from nanodoc.pipeline.run import run_recipe
from nanodoc.pipeline.script import ScriptRun
from nanodoc.progress import Progress
from nanodoc.recipe.adapt import as_recipe
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.report.report import Report
from nanodoc.report.terminal import render
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.marking import marked


def examine(recipe: Any, steps: int | None = None, **options: Any) -> Report:
    """Runs a recipe in this process, watches it, and returns the report. `recipe` is what a
    `build()` may return: a `Recipe`, a dict, a dataclass or a tuple. `options` are those of
    `nanodoc run`, with underscores (`budget="20s"`, `snapshot_dir=...`). Raises `UsageError`."""
    config = _config(options if steps is None else {**options, "steps": steps})
    made = as_recipe(recipe, "examine")
    after = prepared(config)
    return after.report(run_recipe("a recipe in code", made, BuildFacts(), config, Progress()))


def watch(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    **options: Any,
) -> Watched:
    """Watches your training loop::

        with nanodoc.watch(model, optimizer) as watch:
            for x, y in watch.steps(loader):
                ...
        watch.report()

    `model` is optional: it is found through its optimizer. Pass `optimizer` if it was created
    before the `with` block. A sick step ends the `with` block, and the report says why. `options`
    as for `examine`. Raises `UsageError`."""
    del model  # its parameters are the optimizer's
    if optimizer is None:
        optimizers: list[torch.optim.Optimizer] = []
    else:
        optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    config = _config(options)
    return Watched(optimizers, config)


def merged(reports: Iterable[Report]) -> Report:
    """Merges the reports of all ranks, each from `nanodoc.watch` in its own process: which rank
    failed first, and what only shows across ranks::

        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, watch.report())
        print(nanodoc.merged(gathered).verdict)

    Raises `UsageError` if a report is not from one of several ranks, or if two are from the same
    rank."""
    pairs = []
    for report in reports:
        facts = getattr(report, "of_rank", None)
        if facts is None:
            raise UsageError(
                "merged() takes reports of ranks, each from nanodoc.watch in its own process"
            )
        pairs.append((outcome_of_rank(facts, report), report))
    ranks = [outcome.rank for outcome, _ in pairs]
    if not ranks or len(set(ranks)) < len(ranks):
        raise UsageError(f"merged() takes one report per rank, but got reports of ranks {ranks}")
    return merged_report(sorted(pairs, key=lambda pair: pair[0].rank), _config({}))


class Watched:
    """A watched training. A context manager; `steps` wraps the loop's data."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], config: Config) -> None:
        self._after = prepared(config)
        self._loops = Loops()
        self._run = ScriptRun(
            "a loop in code", _nothing, self._loops, config, Progress(), in_code=True
        )
        self._optimizers = optimizers
        self._around: AbstractContextManager[None] | None = None
        self._over = False
        self._report: Report | None = None

    def __enter__(self) -> Watched:
        if self._around is not None:
            raise UsageError("this watch has been used; create a new one with nanodoc.watch(...)")
        self._around = self._run.watching(lambda error: False)
        self._around.__enter__()
        for optimizer in self._optimizers:
            self._run.session.made(optimizer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert self._around is not None
        self._over = True
        if kind is None or issubclass(kind, SystemExit):
            self._run.session.broken_off(sys._getframe(1))
        return bool(self._around.__exit__(kind, error, trace))

    def steps(self, data: Iterable[Any]) -> Steps:
        """The batches of `data`, each of which starts a step. Use it in a `for` statement."""
        return Steps(self._run, self._loops, data)

    def report(self) -> Report:
        """The findings. Raises `UsageError` while the `with` block is open."""
        if not self._over:
            raise UsageError("report() is available after the `with` block")
        if self._report is None:
            self._report = self._after.report(self._run.report())
        return self._report

    def _repr_html_(self) -> str:
        """As Jupyter shows it."""
        text = render(self.report()) if self._over else "nanodoc: the `with` block is still open"
        return f"<pre>{html.escape(text)}</pre>"


class Steps:
    """Batches whose loop is the training's."""

    def __init__(self, run: ScriptRun, loops: Loops, data: Iterable[Any]) -> None:
        self._session = run.session
        self._loops = loops
        self._data = data
        self._batches: Iterator[Any] | None = None
        self._loop: Loop | None = None
        self._counted = False
        """The loop is over `enumerate(watch.steps(...))`."""
        self._number = 0

    def __iter__(self) -> Steps:
        self._batches = None
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        if self._batches is None:
            self._batches = iter(self._data)
            self._loop, self._number = self._found(frame), 0
        loop = self._loop
        try:
            value = next(self._batches)
        except StopIteration:
            if loop is not None:
                self._session.leave(loop.number)
            raise
        if loop is not None:
            given = (self._number, value) if self._counted else value
            self._number += 1
            self._session.begin(loop.number, frame, loop.bound_by(given))
        return value

    def _found(self, frame: FrameType) -> Loop | None:
        """The `for` statement that draws from this."""
        file = frame.f_code.co_filename
        if file not in self._loops.by_file:
            try:
                marked(self._loops, "".join(linecache.getlines(file)), file)
            except SyntaxError:
                self._loops.by_file[file] = []
        found = self._loops.headed_by(frame, frame.f_lineno)
        iterable: Any = found.iterable if found is not None else None
        self._counted = _calls(iterable, "enumerate") and len(iterable.args) == 1
        if not _calls(iterable.args[0] if self._counted else iterable, "steps"):
            warnings.warn(
                "nanodoc: the `for` statement must iterate over steps() or enumerate(steps()), as "
                "in `for x, y in watch.steps(loader)`; this loop is not watched",
                stacklevel=3,
            )
            return None
        return found


def _calls(node: Any, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return getattr(called, "attr", getattr(called, "id", None)) == name


def _config(options: dict[str, Any]) -> Config:
    return load_config(None, {name: value for name, value in options.items() if value is not None})


def _nothing() -> None:
    return None
