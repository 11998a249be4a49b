"""What a second start of the training shows of the death or the failure of the first one. Each is
a look of its own in this process, which has the whole budget: the first one left no report."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace

from nanodoc.diagnosis.finding import Fix
from nanodoc.facts.cuda_errors import BLOCKING, is_cuda
from nanodoc.facts.death import LAST_WORDS, SECOND_RUN, DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import device_is_lost, worker_died
from nanodoc.looks.scheduler import Look, Looks, Stage
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.pipeline.post_mortem import death_of, died, failure_noted
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.supervise.job import Job, SecondRun, without_files
from nanodoc.supervise.parent import Child, Ended

# The batch has no index out of range, so that this is no advice any more.
_PASSED_ON_CPU = (
    Fix(
        title="the batch passes on the CPU: look at the device's own log, at kernels of your own, "
        "and at what is kept from step to step",
        confidence="maybe",
    ),
)
_MORE_STEPS = 3  # beyond the step that died: a second run that gets so far does not die there
_GROUP = "a second run"
_WITHOUT_WORKERS = "loading the batches again, without workers"


class SecondLooks:
    """The looks at one run that ended by `ended`."""

    def __init__(self, job: Job, ended: Ended, progress: Progress) -> None:
        self._job = job
        self._ended = ended
        self._progress = progress
        self._looks = Looks(job.config.budget)

    def told(self, report: Report) -> Report:
        """The report with what was not looked at."""
        return replace(
            report,
            not_checked=(*report.not_checked, *self._looks.not_checked()),
            interrupted=report.interrupted or self._looks.interrupted,
        )

    def at_death(self, death: DeathFacts) -> DeathFacts:
        """The process died: the same run once more, with every line of the user's noted down from
        the step on that the first one died in."""
        if death.killed_for_memory:
            return replace(death, again_note="not re-run: it would run out of memory again")
        return self._look_at(death, "re-running it line by line", self._died_again)

    def at_silence(self, death: DeathFacts) -> DeathFacts:
        """A loader did not say what it waits for: the batches loaded again without workers."""
        return self._look_at(death, _WITHOUT_WORKERS, self._silent_again)

    def at_failure(self, report: Report, failure: Failure, step: int | None) -> Report:
        """The report with what a fresh process can tell of an exception that the first one could
        only report."""
        found = [report]
        if worker_died(failure) is not None:

            def without_workers() -> None:
                found[0] = self._worker_again(report, failure, step)

            self._look(_WITHOUT_WORKERS, without_workers)
        elif device_is_lost(failure):
            self._without_the_device(found, failure, step)
        return self.told(found[0])

    def _look_at(
        self, death: DeathFacts, name: str, seen: Callable[[DeathFacts], DeathFacts]
    ) -> DeathFacts:
        found = [death]

        def look() -> None:
            found[0] = seen(death)

        if self._look(name, look):
            return found[0]
        seconds, budget = self._ended.seconds, self._job.config.budget
        return replace(
            death,
            again_note=f"not run again: that takes {seconds:.0f} s, and --budget allows "
            f"{budget:.0f}",
        )

    def _look(
        self,
        name: str,
        work: Callable[[], None],
        *,
        likely: float = 0.5,  # half of what ends a process does so in the same line again
        asks: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Takes a look that starts the training again, which takes as long as the first time.
        Whether there was time for it."""

        def look() -> None:
            self._progress.say(name)
            work()

        self._looks.add(
            Look(
                name=name,
                group=_GROUP,
                stage=Stage.LAST_STEPS,
                likely=likely,
                runs=0,
                seconds=self._ended.seconds,
                asks=asks,
                work=lambda place: look(),
            )
        )
        before = len(self._looks.taken)
        self._looks.run()
        return len(self._looks.taken) > before

    def _died_again(self, death: DeathFacts) -> DeathFacts:
        again = self._again(
            SecondRun(step=death.step, lines=True),
            steps=death.step + _MORE_STEPS if death.step is not None else None,
        )
        other, _ = failure_noted(again)
        if other is not None:
            note = f"run again, it raised {other.type} in the {other.phase} before it got there"
            return replace(death, again_note=note)
        if not died(again):
            note = "it did not end this way when it was re-run"
            return replace(death, again=False, again_note=note)
        second = death_of(again)
        same = (second.signal, second.status, second.step) == (
            death.signal,
            death.status,
            death.step,
        )
        if not same or (death.frames and second.frames and _place(second) != _place(death)):
            note = f"run again, it {second.how} in step {second.step}"
            return replace(death, again=False, again_note=note)
        if not second.frames:
            return replace(death, again=True)
        known = f"{death.known_from} and {SECOND_RUN}" if death.known_from else SECOND_RUN
        return replace(
            death,
            again=True,
            frames=second.frames if death.known_from != LAST_WORDS else death.frames,
            known_from=known,
            module=death.module or second.module,
            module_type=death.module_type or second.module_type,
            call=second.call or death.call,
            item=second.item,
        )

    def _silent_again(self, death: DeathFacts) -> DeathFacts:
        again = self._again(
            SecondRun(step=None, lines=True, without_workers=True),
            steps=(death.step or 0) + 1,
            silence=self._job.config.timeout,
        )
        if again.silent_for is None:
            note = "loaded again without workers, the batches came"
            return replace(death, again=False, again_note=note)
        second = death_of(again)
        if not second.frames:
            return replace(death, again=True)
        return replace(
            death,
            again=True,
            again_note="loaded without workers",
            frames=second.frames,
            known_from=SECOND_RUN,
            call=second.call,
            item=second.item,
        )

    def _worker_again(self, report: Report, failure: Failure, step: int | None) -> Report:
        again = self._again(
            SecondRun(step=None, lines=True, without_workers=True), steps=(step or 0) + 1
        )
        told = None
        raised, _ = failure_noted(again)
        if raised is not None:  # a worker that ends by sys.exit: here it is an exception
            item = (again.trail.words or {}).get("item")
            told = DeathFacts(
                in_worker=True,
                again=True,
                frames=raised.frames,
                item=item,
                call="sys.exit" if raised.type == "SystemExit" else None,
                status=1,
            )
        elif died(again):
            told = replace(death_of(again), in_worker=True, again=True)
        elif again.report is not None:
            told = DeathFacts(in_worker=True, again=False)
        where = next(
            (finding.culprit.location for finding in report.findings if finding.phase == "data"),
            None,
        )
        evidence = Evidence(
            failure=failure,
            failure_step=step,
            steps_run=self._ended.trail.finished,
            death=told,
            data_site=where,
        )
        return replace(report, findings=diagnose(evidence, self._job.config))

    def _without_the_device(self, found: list[Report], failure: Failure, step: int | None) -> None:
        """The failing batch on the CPU, which names the index; where it passes there, the run again
        with every kernel waited for."""
        told = found[0]
        named = False  # by one of them

        def run(said: str, again: SecondRun, environment: dict[str, str], device: str) -> None:
            nonlocal named
            ended = self._again(again, steps=None, environment=environment, device=device)
            if ended.report is not None:
                of_batch = again.batch is not None
                found[0], named = _seen_again(
                    found[0], ended.report, failure, said, step, of_batch=of_batch
                )

        if (batch := told.artifacts.get("batch")) is not None:
            said = "running the batch on the CPU"
            # most of these errors are an index out of range, which the CPU names
            self._look(said, lambda: run(said, SecondRun(batch=batch), {}, "cpu"), likely=0.8)
        if is_cuda(told.run.device):  # of other devices none offers to wait for every kernel
            named_as = " ".join(f"{key}={value}" for key, value in BLOCKING.items())
            waiting = f"re-running it with {named_as}"
            self._look(
                waiting,
                lambda: run(waiting, SecondRun(), dict(BLOCKING), self._job.config.device),
                asks=lambda: not named,
            )

    def _again(
        self,
        again: SecondRun,
        *,
        steps: int | None,
        environment: Mapping[str, str] | None = None,
        device: str | None = None,
        silence: float | None = None,
    ) -> Ended:
        """The run in a fresh child, without anything that only serves its own report; its files go
        nowhere. It is ended after as many seconds without a sign of life as the budget, or
        `silence`, allows."""
        job = self._job
        with tempfile.TemporaryDirectory(prefix="nanodoc-") as folder:
            config = replace(
                without_files(job.config, folder, steps),
                checkpoints=False,
                leak_check=False,
                device=device or job.config.device,
            )
            limit = min(max(self._looks.left, 1.0), silence or math.inf)
            return Child(
                replace(job, config=config, live=False, again=again),
                Progress(),
                limit,
                environment,
            ).run()


def _seen_again(
    report: Report,
    again: Report,
    failure: Failure,
    said: str,
    step: int | None,
    *,
    of_batch: bool,
) -> tuple[Report, bool]:
    """The report with what a run without the lost device has shown, and whether that names the
    cause. `step` is the one that failed; `of_batch`: only its batch was run."""
    found, first = again.findings, report.findings[0]
    # code that names its devices cannot run on the CPU: that is no finding of the training's
    if found and found[0].severity == "critical" and found[0].name != "device-mismatch":
        cause = found[0]
        told = replace(
            cause,
            step=step if of_batch else cause.step,
            experiments=(
                *cause.experiments,
                {"name": said, "outcome": "fails there too", "loss": None},
            ),
            evidence=(*cause.evidence, ("on the GPU", f"{failure.type}: {failure.first_line}")),
            effects=(*cause.effects, (f"{first.code} {first.title}", step))
            if first.code != cause.code
            else cause.effects,
        )
        return replace(report, findings=(told, *found[1:])), True
    if not found:
        passed = {"name": said, "outcome": "passes", "loss": None}
        first = replace(
            first,
            experiments=(*first.experiments, passed),
            fixes=_PASSED_ON_CPU if of_batch else first.fixes,
        )
        return replace(report, findings=(first, *report.findings[1:])), False
    return report, False


def _place(death: DeathFacts) -> tuple[str, int]:
    return death.frames[-1].file, death.frames[-1].line
