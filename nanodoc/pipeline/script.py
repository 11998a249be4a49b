"""One run of one script, as it is: its steps, watched → report."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.config import Config, artifact_folder
from nanodoc.errors import InternalError, UserCodeError
from nanodoc.examination.making import Source
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import EXPERIMENTS, Evidence
from nanodoc.facts.ranks import RankAtStart
from nanodoc.facts.untraced import Untraced
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import EXAMINATION, here
from nanodoc.loop.history import History
from nanodoc.loop.interrupts import ending_by
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.pipeline.common import device_name, has_left, run_info
from nanodoc.pipeline.ranks import before_the_run
from nanodoc.pipeline.rebuilt import Rebuilt, can_be_repeated, data_of_script
from nanodoc.pipeline.reporting import reported, unwatched
from nanodoc.pipeline.run_plan import DEFAULT_STEPS, Run, engine_options
from nanodoc.pipeline.shown_errors import show
from nanodoc.pipeline.untraced import untraced
from nanodoc.progress import Progress
from nanodoc.recipe.build_watch import BuildWatch
from nanodoc.recipe.trainers import TrainerReturned
from nanodoc.report.report import Report
from nanodoc.report.terminal import render
from nanodoc.report.trainings import of_all_trainings
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.muted import aloud
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.session import ScriptSession
from nanodoc.script.states import ENDED, ScriptEnded, TrainingIsSick
from nanodoc.script.succession import Successor
from nanodoc.script.trained import Trained
from nanodoc.supervise.launch import Launch
from nanodoc.trace.files import short_path, shown_path

_MOST_TRAININGS = 8  # of one script, that are watched
_NO_STEP = "no optimizer step was seen"


def run_trainer(
    entrypoint: str, returned: TrainerReturned, loops: Loops, config: Config, progress: Progress
) -> Report:
    """Runs the trainer that an entrypoint returned, whose loops are among `loops`."""
    run = ScriptRun(entrypoint, returned.train, loops, config, progress, building=returned.building)
    return run.run()


class ScriptRun:
    """One run of one script."""

    def __init__(  # noqa: PLR0913 - three kinds of training, each with what only it has
        self,
        entrypoint: str,
        program: Callable[[], Any],
        loops: Loops,
        config: Config,
        progress: Progress,
        *,
        launch: Launch | None = None,
        sought: Untraced | None = None,
        building: BuildWatch | None = None,
        in_code: bool = False,
        raises: bool = False,
    ) -> None:
        """`launch`: how the script was started; `sought`: the step that it runs a second time for.
        `building`: what was seen of the making of what
        `program` trains, if that is over. `in_code`: the training calls nanodoc itself; with
        `raises` it is ended by `TrainingIsSick` where it is sick."""
        self._began = 0.0
        self._launch, self._in_code, self._raises = launch, in_code, raises
        self._sought = sought
        self._entrypoint = entrypoint
        # a script may change the working folder before its loop begins
        self._home = Path.cwd()
        self._config = config
        self._progress = progress
        self._loops = loops
        self._program = program
        self._outside = Outside(self._loops, torch.device("cpu"))
        self._earlier = building
        self._building = BuildWatch(memory=False)
        self._built = False
        most = config.steps if building is None else config.steps or DEFAULT_STEPS
        self._before: RankAtStart | None = None
        self._report: Report | None = None
        self._status = 0
        self._history: History | None = None
        self._most = most
        self._earlier_reports: list[Report] = []
        self._cut_short = False
        self.session = self._session = self._new_session(
            most, 0 if in_code else _MOST_TRAININGS - 1
        )

    def _new_session(
        self, most: int | None, successors: int, around: Loop | None = None
    ) -> ScriptSession:
        return ScriptSession(
            self._loops,
            self._outside,
            self._engine,
            self._conclude,
            most,
            successor=None if self._in_code else self._successor,
            most_successors=successors,
            wanted=None if around is None else lambda loop: loop is around,
        )

    def _successor(self, found: Successor) -> ScriptSession:
        """The session of the training that follows the one that is over."""
        self._session.close()
        if self._cut_short:
            raise ScriptEnded
        if self._report is not None:
            self._earlier_reports.append(self._report)
            self._report = None
        done = sum(report.vitals.steps for report in self._earlier_reports)
        left = _MOST_TRAININGS - 1 - len(self._earlier_reports)
        self.session = self._session = self._new_session(
            None if self._most is None else max(self._most - done, 1), left, found.around
        )
        self._session.install()
        here().going_on()
        here().at(None, "script")
        return self._session

    def run(self) -> Report:
        """Runs the program. Raises `UsageError`, `InternalError`, and `KeyboardInterrupt` where it
        was interrupted before there was anything to tell."""
        with ending_by(self._told_to_end), self.watching(self._shown_and_gone):
            self._program()
        return self.report()

    @contextlib.contextmanager
    def watching(self, on_error: Callable[[BaseException], bool]) -> Iterator[None]:
        """Around the training. `on_error` is told what it raised, and says whether that ends
        here."""
        here().at(None, "script")
        self._began = time.monotonic()
        try:
            self._session.install()
            # above the session's wrappers: they are taken away in that order
            self._building.__enter__()
            try:
                yield
                self._session.ended()
            except ENDED:
                raise
            except BaseException as error:
                gone = on_error(error)
                self._raised(error)
                if not gone:
                    raise
        except ENDED:
            if self._raises:
                raise
        finally:
            self._close()

    def _raised(self, error: BaseException) -> None:
        """The training was left by an exception."""
        if isinstance(error, SystemExit):
            self._status = _status(error)
            self._session.ended()
        elif isinstance(error, KeyboardInterrupt):
            self._status = 130
            self._interrupted()
        else:
            self._status = 1
            self._failed(error)

    def _close(self) -> None:
        """Nothing is watched any more."""
        self._end_of_building()
        self._session.close()
        if self._history is not None:
            self._history.close()

    def report(self) -> Report:
        """What was found, when the training is over. Raises `InternalError` where the watching was
        ended by an error of nanodoc's own."""
        broken = self._session.broken
        if broken is not None:
            raise InternalError(
                f"{type(broken).__name__}: {' '.join(str(broken).split())[:200]}; the script "
                "went on unwatched; please report this"
            ) from broken
        report = self._report or self._nothing()
        if self._earlier_reports:
            report = of_all_trainings([*self._earlier_reports, report])
        return replace(report, script_status=self._status)

    @property
    def told(self) -> bool:
        """The report is on stderr already."""
        return self._raises and self._report is not None

    def _shown_and_gone(self, error: BaseException) -> bool:
        """As Python would end."""
        if isinstance(error, SystemExit):
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        elif not isinstance(error, KeyboardInterrupt):
            show(error)
        return True

    def _end_of_building(self) -> None:
        if not self._built:
            self._built = True
            self._building.__exit__(None, None, None)

    def _engine(self, trained: Trained, step: RecoveredStep) -> ScriptEngine:
        """The engine of the script's training, from the step on that was found first."""
        config, recipe = self._config, trained.recipe
        self._end_of_building()
        facts = self._building.settle(recipe.model)
        if self._earlier is not None:  # a trainer makes its optimizers when it trains
            facts = self._earlier.settle(recipe.model).and_later(facts)
        places = self._session.optimizer_places()  # also of those that were made later
        facts = replace(facts, optimizers={**facts.optimizers, **places})
        here().of_model(
            {
                id(module): (path, type(module).__name__)
                for path, module in recipe.model.named_modules()
            }
        )
        here().plan(config.steps or 0, device_name(trained.device))
        folder = artifact_folder(config)
        if has_left(self._home):
            folder = self._home / folder
        if self._history is not None:  # of an engine that ran the first step in vain
            self._history.close()
        with aloud():
            self._history = History(folder, len(self._earlier_reports) + 1)
        self._run = Run(
            entrypoint=self._entrypoint,
            config=config,
            device=trained.device,
            amp_dtype=None,
            steps=config.steps or 0,
            folder=folder,
            history=self._history.path,
            artifacts={"history": str(self._history.path), "snapshot": None},
            script=True,
            launch=self._launch,
            replayable=not self._in_code,
            data=lambda: Source.of_loader(self._outside.trained_on, self._outside.validations()),
            asides=self._outside.facts,
            rebuilt=self._rebuilt(),
        )
        self._outside.asides.of_model(recipe.model)
        self._before = before_the_run(recipe, self._session.started or None)
        engine = ScriptEngine(
            recipe,
            trained.device,
            None,
            steps=config.steps or 0,
            history=self._history,
            build_facts=facts,
            **engine_options(config, folder),
        )
        # not held: what an engine holds must be gone when the next training is looked for
        held = weakref.ref(engine)
        self._outside.asides.inputs.of_model(
            recipe.model, lambda: (own := held()) is not None and not own.computes_otherwise()
        )
        if self._sought is not None and self._sought.training == len(self._earlier_reports):
            engine.sought = self._sought
        return engine

    def _conclude(self, engine: ScriptEngine, outcome: Outcome) -> BaseException:
        """The report, made where the script stands: what a step needs is all there."""
        session = self._session
        outcome.notes += self._told()
        self._run = replace(self._run, steps=max(outcome.steps_run, self._config.steps or 0))
        if not (session.same or (session.deferred and not engine.unproven)):
            # what is run again says nothing of the script
            outcome = replace(outcome, start=None, capsule=None)
        try:
            report = reported(self._run, engine, outcome, self._progress, self._before)
            found = self._found(session.loop)
            report = replace(report, run=replace(report.run, step_found=found))
            if self._launch is not None:
                sick = untraced(report, outcome, engine, self._earlier_reports)
                report = replace(report, untraced=sick)
            self._report = report
        finally:
            engine.end()
        if not self._raises:
            return ScriptEnded()
        # nobody may be told that the training ends
        self._close()
        print(render(self._report), file=sys.stderr)
        first = report.findings[0] if report.findings else None
        if first is None:
            return ScriptEnded()
        place = first.culprit.location
        where = f" at {place.place}" if place is not None else ""
        return TrainingIsSick(f"{first.severity}[{first.code}]: {first.title}{where}")

    def _rebuilt(self) -> Rebuilt | None:
        """How the script's data are made anew; None where that takes long, or can't be done."""
        launch = self._launch
        if launch is None or not can_be_repeated(time.monotonic() - self._began):
            return None
        return lambda: data_of_script(launch)

    def _found(self, loop: Loop | None) -> str:
        if loop is None:
            return ""
        place = f"step {short_path(loop.file)}:{loop.line}"
        session = self._session
        if session.unsafe:
            place += ", not re-run"
        elif session.deferred:
            place += ", re-run only if it fails"
        elif session.same is not None:
            place += f", replay of step 0 {session.alike}"
        traced = session.engine.traced if session.engine is not None else ""
        return f"{place}, {traced}" if traced else place

    def _told(self) -> list[tuple[str, str]]:
        notes = [
            ("another training loop", f"the one at {shown_path(place)} was not watched")
            for place in sorted(self._session.unseen)
        ]
        if self._session.deferred:
            notes.append(("the first step", f"not re-run: {self._session.deferred}"))
        if self._session.unsafe:
            notes.append((EXPERIMENTS, f"no step can be re-run: it uses {self._session.unsafe}"))
        elif self._session.same is False:
            why = f": {self._session.differs}" if self._session.differs else ""
            notes.append((EXPERIMENTS, f"the first step did not reproduce when it was re-run{why}"))
        if self._session.reached and (loop := self._session.loop) is not None:
            place = f"{short_path(loop.file)}:{loop.line}"
            why = f"--steps {self._config.steps} ended it in the loop at {place}"
            notes.append(("the rest of the script", why))
        return notes

    def _told_to_end(self) -> None:
        """SIGTERM is about to come: the report of what was seen, made where the script stands. An
        examination is cut short, and no other training follows."""
        if here().trail().phase == EXAMINATION:
            self._cut_short = True
            raise KeyboardInterrupt
        if (end := self._session.told_to_end()) is not None:
            raise end

    def _interrupted(self) -> None:
        """Ctrl-C: what was seen until then is told."""
        with contextlib.suppress(*ENDED):
            self._session.ended()
        if self._report is None:
            raise KeyboardInterrupt
        self._report = replace(self._report, interrupted=True)

    def _failed(self, error: BaseException) -> None:
        try:
            known = self._session.failed(error)
        except ENDED:
            return
        if not known or self._report is None:
            failure = describe_failure(UserCodeError(error, "script"))
            note_failure(here(), failure, None)
            self._report = self._bare(Evidence(failure=failure))

    def _nothing(self) -> Report:
        """No training was seen."""
        report = self._bare(Evidence())
        return replace(report, not_checked=(*report.not_checked, ("the training", _NO_STEP)))

    def _bare(self, evidence: Evidence) -> Report:
        info = run_info(
            self._entrypoint,
            "run",
            self._config,
            torch.device("cpu"),
            None,
            self._config.steps or 0,
            0,
            "not_run",
        )
        return unwatched(info, evidence, self._config)


def _status(left: SystemExit) -> int:
    """The exit status that Python would give."""
    if left.code is None:
        return 0
    return left.code if isinstance(left.code, int) else 1
