"""What is looked at after a run that torch.compile has compiled parts of: whether these compute
what their source says. Every other look runs them uncompiled."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Any

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.compiled_op import first_apart, is_stale
from nanodoc.examination.compiled_parts import CompiledParts
from nanodoc.facts.compiled import CompiledFacts
from nanodoc.looks.scheduler import Look, Place, Stage
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.watchers.watch import RunEnd, Watch

COMPILED = "compiled parts beside their source"


class CompiledWatch(Watch):
    """One run's watch."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper, build: BuildFacts) -> None:
        super().__init__()
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self.found: CompiledFacts | None = None

    def at_end(self, end: RunEnd) -> None:
        end.looks.add(
            Look(
                name="compiled parts",
                group=COMPILED,
                stage=Stage.LAST_STEPS,
                likely=0.05,  # compilers seldom err, and code seldom asks whether it is compiled
                runs=6,
                asks=lambda: self._is_compiled() and (end.failed or end.last) is not None,
                needs=lambda: "each rank would have to call them" if several_ranks() else "",
                work=lambda place: self._look(end.failed or end.last, place),
            )
        )

    def facts(self) -> dict[str, Any]:
        return {"compiled": self.found}

    def _is_compiled(self) -> bool:
        compiled = self._build.is_compiled(self._runner.recipe.model)
        return compiled and "torch._dynamo.eval_frame" in sys.modules

    def _look(self, start: StepState | None, place: Place) -> None:
        """The last step, or the one that failed, once more, compiled."""
        assert start is not None
        parts = CompiledParts(self._runner.recipe.model, self._build, self._runner.device)
        with state_preserved(self._runner, self._keeper, moving=True), warnings_unsaid():
            self._keeper.restore(start)
            batches = [self._runner.moved(batch) for batch in start.batches]
            with contextlib.suppress(UserCodeError, UsageError), parts.watching():
                run_step(self._runner, batches)
        self.notes += [(f"{COMPILED}: {name}", why) for name, why in parts.unasked.items()]
        if parts.found is not None:
            self.found = replace(parts.found, step=start.step)
            if parts.part is not None and place.allows(place.one_run, "its first op"):
                with state_preserved(self._runner, self._keeper), contextlib.suppress(Exception):
                    op = first_apart(parts, parts.part)
                    stale = op is None and is_stale(parts, parts.part)
                    self.found = replace(self.found, op=op, stale=stale)
