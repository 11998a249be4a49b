"""The step at which a run ended, on disk: one file, or where its model is sharded a folder to which
each rank adds its own part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from nanodoc.errors import said
from nanodoc.facts.ranks import SICK, RankAtStart
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.shared_run import SharedRun
from nanodoc.pipeline.ranks import own_end
from nanodoc.pipeline.run_plan import Run
from nanodoc.replay.local_collectives import is_grouped, several_ranks
from nanodoc.replay.lockstep import all_agree
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.shared_folder import SharedFolder
from nanodoc.replay.snapshot import snapshot_of, write_snapshot
from nanodoc.replay.step_state import StepState
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.saved_step import step_content
from nanodoc.tensors.plain import is_sharded

_NAME = "snapshot"


def write_step(
    run: Run,
    engine: SharedRun,
    outcome: Outcome,
    before: RankAtStart | None,
    not_checked: list[tuple[str, str]],
) -> None:
    """Writes the step that tripped to disk."""
    trip, capsule = outcome.evidence.trip, outcome.capsule
    shared = engine.lockstep.shared
    if capsule is not None and any(map(is_sharded, engine.recipe.model.parameters())):
        capsule, shared = None, capsule  # over the only rank
    if trip is None or (capsule is None and shared is None):
        return
    if not run.replayable:
        why = "nanodoc did not start this training and cannot restart it"
        not_checked.append((_NAME, why))
        return
    try:
        if capsule is not None:
            with _content(run, engine, outcome, capsule) as content:
                run.artifacts[_NAME] = str(write_snapshot(run.folder, content))
        elif shared is not None:
            sick = own_end(outcome.evidence, grouped=before is not None) == SICK
            _write_together(run, engine, outcome, shared, sick=sick)
    except Exception as error:  # whatever a script's variables hold, the report is to be made
        not_checked.append((_NAME, f"it could not be written: {said(error)[:200]}"))


@contextlib.contextmanager
def _content(
    run: Run, engine: SharedRun, outcome: Outcome, capsule: StepState, **more: Any
) -> Iterator[dict[str, Any]]:
    """The snapshot's content, which holds the training's own tensors: they are as they were at the
    step's start until it is written. `more` is told of the run besides what the step came to."""
    recipe, trip = engine.recipe, outcome.evidence.trip
    assert trip is not None
    told: Mapping[str, Any] = {
        "loss": trip.loss,
        "grad_norm": trip.grad_norm,
        "amp": str(run.amp_dtype) if run.amp_dtype else None,
        "ranks": dist.get_world_size() if is_grouped() else None,
        **more,
    }
    with contextlib.ExitStack() as around:
        script = None
        if run.script:
            around.enter_context(state_preserved(engine.runner, engine.keeper))
            engine.keeper.restore(capsule)
        if isinstance(recipe.train_step, RecoveredStep):
            script = step_content(recipe.train_step, run.launch)
        yield snapshot_of(
            recipe,
            capsule,
            run.entrypoint,
            run.config.as_dict(),
            told,
            outcome.indices,
            script,
        )


def _write_together(
    run: Run, engine: SharedRun, outcome: Outcome, capsule: StepState, *, sick: bool
) -> None:
    """This rank's part of the step that all ranks ran together, and what it came to then. Raises
    where they do not all come, or where one of them fails to write its part."""
    told = {"sharded": True, **engine.lockstep.came_to}
    engine.alone.end()
    # each of several ranks has a folder of its own in the one that all see
    parent = run.folder.parent if several_ranks() else run.folder
    try:
        if not all_agree(capsule.step, _NAME):
            raise OSError("some ranks did not write their parts")
        with (
            SharedFolder(parent, capsule.step, engine.recipe) as folder,
            _content(run, engine, outcome, capsule, **told) as content,
        ):
            folder.write(content, sick=sick)
        run.artifacts[_NAME] = str(folder.path)
    finally:
        engine.alone.begin()
