"""`nanodoc replay` of a script's step: the script is run up to its training, and the snapshot's
step takes the place of the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.config import Config
from nanodoc.errors import UsageError, UserCodeError, said
from nanodoc.pipeline.common import build_watched
from nanodoc.pipeline.replay_options import ReplayOptions
from nanodoc.pipeline.replayed_step import ReplayedStep, report_of_replay
from nanodoc.pipeline.replayed_together import report_together
from nanodoc.pipeline.snapshot_content import (
    UNFIT,
    mapping_of,
    trusted_entrypoint,
    trusted_file,
    trusted_module,
)
from nanodoc.progress import Progress
from nanodoc.recipe.trainers import TrainerReturned
from nanodoc.replay.local_collectives import LocalCollectives
from nanodoc.replay.shards import read_shards
from nanodoc.replay.step_state import StateKeeper
from nanodoc.report.report import Report
from nanodoc.script.launcher import Program, marked_trainers
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.muted import muted
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.replay_session import ReplaySession
from nanodoc.script.saved_step import launch_of, put_back, source_of
from nanodoc.script.search import Candidate
from nanodoc.script.states import ScriptEnded
from nanodoc.supervise.launch import Launch
from nanodoc.trace.files import shown_path

_SCRIPT = "a script's step is replayed exactly as the script computes it"


def replay_script(
    path: Path,
    content: dict[str, Any],
    config: Config,
    entrypoint: str | None,
    options: ReplayOptions,
    progress: Progress,
) -> Report:
    """Runs the script that the snapshot names up to its training, silently and without writing a
    file, and replays the snapshot's step there. Raises `UsageError`."""
    for asked, name in (
        (options.dtype, "--dtype"),
        (config.amp, "--amp"),
        (options.debug, "--pdb"),
    ):
        if asked:
            raise UsageError(f"{name}: {_SCRIPT}; leave it out")
    launch = launch_of(content)
    if launch is None:
        loops, run, named = _trainer(content, config, entrypoint)
    else:
        launch = _trusted(launch, entrypoint)
        loops = Loops()
        run, named = Program(launch, loops).run, str(launch)
    progress.say(f"running {named} up to its training …")
    return _ScriptReplay(path, content, named, config, options, progress).report(loops, run)


def _trusted(launch: Launch, entrypoint: str | None) -> Launch:
    """The launch with what was given instead of its target: a stranger's file must not pick what
    runs."""
    if entrypoint is not None:
        module = entrypoint.startswith("-m ")
        return replace(launch, target=entrypoint.removeprefix("-m ").strip(), module=module)
    if launch.module:
        trusted_module(launch.target)
    else:
        trusted_file(Path(launch.target), launch.target, "FILE.py")
    return launch


def _trainer(
    content: dict[str, Any], config: Config, entrypoint: str | None
) -> tuple[Loops, Callable[[], Any], str]:
    """The loops and the training of the trainer that an entrypoint returns, and its name."""
    named = entrypoint or trusted_entrypoint(content)
    loops = marked_trainers()
    try:
        build_watched(named, config)
    except TrainerReturned as returned:
        return loops, returned.train, named
    except UserCodeError as error:
        raise UsageError(f"{named} raised {said(error.cause)}") from error
    raise UsageError(f"{named} returns a recipe now; the snapshot is a trainer's")


class _ScriptReplay:
    """One replay of one snapshot."""

    def __init__(
        self,
        path: Path,
        content: dict[str, Any],
        named: str,
        config: Config,
        options: ReplayOptions,
        progress: Progress,
    ) -> None:
        self._path, self._content, self._named = path, content, named
        self._config, self._options, self._progress = config, options, progress
        self._silence = contextlib.ExitStack()
        self._found: Report | None = None

    def report(self, loops: Loops, run: Callable[[], Any]) -> Report:
        """Runs the script, and gives what the step showed. Raises `UsageError`."""
        outside = Outside(loops, torch.device("cpu"))
        session = ReplaySession(loops, outside, self._examine, self._is_the_loop(loops))
        raised: BaseException | None = None
        with self._silence:
            self._silence.enter_context(muted())
            try:
                session.install()
                run()
            except ScriptEnded:
                pass
            except (Exception, SystemExit) as error:
                raised = error
            finally:
                session.close()
        if session.trouble is not None:
            raise session.trouble
        if self._found is not None:
            return self._found
        why = f"it raised {type(raised).__name__}: {said(raised)}" if raised is not None else ""
        more = "in a replay it cannot write files or start other programs"
        told = mapping_of(self._content, "run")
        if told.get("sharded") and not self._options.together:
            folder, ranks = self._path.parent, told.get("ranks")
            more = f"by one process; all its ranks: nanodoc replay {folder} --nproc {ranks}"
        raise UsageError(
            f"{self._named} did not reach a step of its training: {why or 'it made none'} ({more})"
        )

    def _is_the_loop(self, loops: Loops) -> Callable[[Loop], bool]:
        """Whether a loop is the snapshot's; of a script that has changed since, every loop is."""
        saved = self._content["script"]
        files: dict[str, str] = {}

        def same(loop: Loop) -> bool:
            if loop.file not in files:
                files[loop.file] = source_of(loop.file)
            return bool(saved["line"] == loop.line and saved["source"] == files[loop.file])

        return lambda loop: same(loop) or not any(same(other) for other in loops.all)

    def _examine(self, first: Candidate, step: RecoveredStep) -> None:
        """The step, where the script stands before its first optimizer step."""
        self._silence.close()
        try:
            alone = LocalCollectives(first.trained.recipe)
            with contextlib.nullcontext() if self._options.together else alone.while_inside():
                self._found = self._examined(first, step)
        finally:
            self._silence.enter_context(muted())

    def _examined(self, first: Candidate, step: RecoveredStep) -> Report:
        saved, trained = self._content["script"], first.trained
        recipe = replace(trained.recipe, data=[first.start.batch])
        content = self._content
        if mapping_of(content, "run").get("sharded"):
            content = read_shards(self._path.parent, recipe, content)
        StateKeeper(recipe, trained.device).restore(first.capsule)
        try:
            put_back(step, self._content)
        except UNFIT as error:
            raise UsageError(f"{self._path}: {said(error)[:200]}") from error
        if self._options.together:
            return report_together(
                recipe, trained.device, content, self._path, self._named, self._config
            )
        again = ReplayedStep(
            recipe,
            trained.device,
            None,
            content,
            self._options,
            self._progress,
            self._config,
        )
        notes = []
        file = first.start.loop.file
        if saved["line"] != first.start.loop.line or saved["source"] != source_of(file):
            why = f"{shown_path(file)} has changed since the snapshot was written"
            notes.append(("bitwise reproduction", why))
        return report_of_replay(again, self._path, self._named, self._config, notes)
