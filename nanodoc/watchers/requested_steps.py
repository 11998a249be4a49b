"""Whole steps looked at on request: their ops written to a file (`--trace-steps`), or their module
frames shown (`--frames`).

A step that was asked for is watched while it runs, which changes nothing of it. The step that
failed, or the last one, is run again when the run is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanodoc.facts.frames import FrameTable, Magnitude, magnitudes
from nanodoc.looks.scheduler import Look, Stage
from nanodoc.measure.frames import FrameProbe
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import Replayer, leaves_of
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.examine import EveryOp
from nanodoc.trace.half import HalfLog, HalfMode
from nanodoc.trace.tracer import Tracer
from nanodoc.trace.write import write_trace
from nanodoc.watchers.amp import AmpWatch
from nanodoc.watchers.watch import NOTHING, RunEnd, Watch

_MOST_OPS, _MOST_LAYERS = 64, 512


@dataclass(frozen=True, kw_only=True, slots=True)
class LookOptions:
    """What was asked for."""

    steps: tuple[int, ...] = ()
    folder: Path | None = None
    """Where the traces of `steps` go."""
    frames: bool = False
    most_frames: int = 100
    module: str = ""
    magnitudes: bool = False
    """Of the layers in the step that failed."""


class RequestedSteps(Watch):
    """One run's looks; `tables` and `files` are there when the run has ended."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        replayer: Replayer,
        amp: AmpWatch,
        options: LookOptions,
        *,
        compiled: bool,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._keeper = keeper
        self._replayer = replayer
        self._amp = amp
        self._options = options
        self._compiled = compiled
        self.closely = False
        """The steps can't be run again: every op is looked at closely while they run."""
        self.eagerly = False
        """Compiled parts run eagerly in the steps that were asked for: nobody uses what comes of
        them."""
        self.running: Tracer | None = None
        """That of the step that is being traced."""
        self.tables: list[FrameTable] = []
        self.magnitudes: tuple[Magnitude, ...] = ()
        self.files: list[str] = []

    def wants(self, step: int) -> bool:
        return step in self._options.steps and (self.eagerly or not self._compiled)

    def around_step(self, start: StepState) -> contextlib.AbstractContextManager[None]:
        """The step is watched live if it was asked for."""
        if not self.wants(start.step):
            return NOTHING
        return self._framing(start) if self._options.frames else self._tracing(start)

    @contextlib.contextmanager
    def _tracing(self, capsule: StepState) -> Iterator[None]:
        model = self._runner.recipe.model
        requests = EveryOp() if self.closely else None
        self.running = tracer = Tracer(model, leaves_of(model, capsule.batches), requests)
        try:
            with run_eagerly() if self.eagerly else contextlib.nullcontext(), tracer:
                yield
        finally:
            self.running = None
            trace = tracer.finish()
            if self._options.folder is not None:
                self.files.append(str(write_trace(trace, self._options.folder, capsule.step)))

    @contextlib.contextmanager
    def _framing(self, capsule: StepState) -> Iterator[None]:
        options = self._options
        half = HalfLog() if self._amp.concerned or self._runner.observing else None
        mode = HalfMode(half) if half is not None else None
        probe = FrameProbe(self._runner.recipe.model, prefix=options.module, half=half, mode=mode)
        try:
            with probe.listening(), probe:
                yield
        finally:
            if half is not None:
                half.finish()
            self.tables.append(probe.finish(capsule.step, "asked for", options.most_frames))

    def at_end(self, end: RunEnd) -> None:
        end.looks.add(
            Look(
                name="the requested steps",
                group="the requested steps",
                stage=Stage.LAST_STEPS,
                due=True,  # the user has asked for it
                likely=1.0,
                runs=5,
                work=lambda place: self._look_at_end(end),
            )
        )

    def _look_at_end(self, end: RunEnd) -> None:
        """The frames of the step that ended the run, or of its last one where none was asked
        for."""
        capsule, failed = end.failed or end.last, end.failed is not None
        options = self._options
        if self._compiled and options.steps:
            what = "the frames" if options.frames else "the ops"
            self.notes.append(
                (
                    f"{what} of single steps",
                    "the training uses torch.compile, and hooks would change what is compiled",
                )
            )
        if options.magnitudes and failed and capsule is not None:
            with state_preserved(self._runner, self._keeper):
                self.magnitudes = magnitudes(self._frames(capsule, "it failed", _MOST_LAYERS))
        if (
            not options.frames
            or capsule is None
            or not (failed or self._compiled or not options.steps)
        ):
            return
        with state_preserved(self._runner, self._keeper):
            table = self._frames(
                capsule,
                "it failed" if failed else "the last batch, with the current weights",
            )
            bad = table.first_bad()
            if bad is not None and bad.module_type:
                table = replace(
                    table,
                    ops=self._replayer.ops_inside(capsule, bad.module)[-_MOST_OPS:],
                    module=bad.module,
                )
        self.tables.append(replace(table, growth=end.growth))

    def _frames(self, capsule: StepState, why: str, most: int | None = None) -> FrameTable:
        half = HalfLog()
        prefix = self._options.module if most is None else ""
        probe = FrameProbe(self._runner.recipe.model, prefix=prefix, half=half)
        self._replayer.replay(capsule, half=half, frames=probe)
        return probe.finish(capsule.step, why, most or self._options.most_frames)
