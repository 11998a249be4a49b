"""The differential of one run: experiments before the rules judge, fixes tried afterwards.
Everything happens when the run is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nanodoc.diagnosis.finding import Finding
from nanodoc.experiments.course_looks import CourseLooks
from nanodoc.experiments.experiments import Experiments
from nanodoc.experiments.first_weights import wide_weights
from nanodoc.experiments.growth import diverging, growth_until
from nanodoc.experiments.loss_scale import loss_scale
from nanodoc.experiments.mended_call import may_be_mended, mended_call
from nanodoc.experiments.overfit import Overfit
from nanodoc.experiments.past import Past
from nanodoc.experiments.samples import GuiltySamples, Parts, indivisible, shares_statistics
from nanodoc.experiments.smaller_rates import turned_betas
from nanodoc.experiments.step import Step
from nanodoc.experiments.treatment import Treatment, can_be_treated, with_rows
from nanodoc.experiments.trial import Say, StepTrials, fails
from nanodoc.experiments.verdict import read
from nanodoc.facts.evidence import EXPERIMENTS, Evidence
from nanodoc.facts.plateau import stuck_at_chance
from nanodoc.facts.trials import FAILS, PASSES, Experiment, Pattern
from nanodoc.looks.scheduler import Look, Looks, Place, Stage
from nanodoc.replay.closure_state import ReachedState
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper
from nanodoc.replay.traced_replay import Replayer
from nanodoc.watchers.skipped_steps import at_scale

_MOST_FINDINGS = 3  # whose fixes are tried
_LOWER = 0.7  # times the loss that a run ended at
_FAR = 1e3  # times the loss at the start: it blew up before, and another batch may pass by chance


class ExperimentRun:
    """Rules causes out by experiment on one step, and tries fixes on it. Ctrl-C ends it; what is
    known by then is kept."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        replayer: Replayer,
        step: Step,
        looks: Looks,
        say: Say,
        *,
        only: str | None = None,
    ) -> None:
        self._only = only
        self._step = step
        self._say = say
        self._keeper = keeper
        self._recipe = runner.recipe
        self._named = list(runner.recipe.model.named_parameters())
        self.looks = looks
        self._trials = StepTrials(runner, keeper, replayer, looks)
        self._capsule = at_scale(step.capsule, runner.device)
        self.experiments = Experiments(
            self._trials, self._capsule, step.elsewhere, half=step.half, say=say
        )
        kept = step.checkpoints
        self._past = Past(self._trials, kept, say) if kept is not None else None
        self._overfit = Overfit(self._trials, kept, say) if kept is not None else None
        self.pattern = Pattern()
        self._course = CourseLooks(self._trials, step, say, lambda: self.pattern, self._tell)
        self._evidence = Evidence()
        self.untold = False
        """Replays of this step mean nothing, and no fix is tried by them."""

    def examine(self, evidence: Evidence) -> Evidence:
        """The evidence with the pattern of the experiments, where something non-finite was met or
        the loss had grown."""
        self._evidence = evidence
        if lost := ReachedState(self._recipe).lost:
            what = f"the step reads {', '.join(lost[:3])}, which replay can't restore"
            self.looks.notes.append((EXPERIMENTS, what))
            self.untold = True
            return replace(evidence, pattern=self.pattern)
        # many steps run again would write over what they wrote
        if evidence.loop is not None and evidence.loop.writes_files:
            self._past = self._overfit = None
            why = "train_step writes files, which a re-run would overwrite"
            self.looks.notes.append(("experiments on earlier steps", why))
        # one batch again and again: only what the step drew is there
        if getattr(self._recipe.train_step, "draws", False):
            self._overfit = None
        self._register_first(evidence)
        if self._past is not None and evidence.trip is None:
            self._course.register(self._add, evidence, self._past)
        self.looks.run(Stage.LARGER_STEPS)
        return replace(self._evidence, pattern=self.pattern)

    def _register_first(self, evidence: Evidence) -> None:
        """What the end of the run asks for first: one look, which the others may need."""
        if evidence.trip is not None or evidence.births or evidence.leaves or evidence.optimizers:
            self._add(
                "experiments on the step",
                lambda place: self._experiment(evidence),
                due=True,  # whether the step fails again decides whether any of this means anything
                runs=len(self.experiments.keys),
            )
        elif may_be_mended(evidence):
            self._add("earlier calls", lambda place: self._mend(), runs=8, first=2)
        elif any(parameter.facts.nonfinite for parameter in evidence.sick_parameters):
            # nothing was run: would the first step have failed?
            self._add("the first step", lambda place: self._first_step(), due=True)
        elif stuck_at_chance(evidence) is not None and self._overfit is not None:
            overfit = self._overfit
            self._add("one batch alone", lambda place: self._one_batch(overfit), runs=60, first=60)
        elif (way := diverging(evidence.losses)) is not None:
            last = len(evidence.losses) - 1
            self._add(
                "earlier steps",
                lambda place: self._look_back(evidence, last, broke=False, repeat=way == "up"),
                runs=10 * last,  # from one checkpoint or two, with several rates
                first=2,
            )

    def _add(
        self,
        name: str,
        work: Callable[[Place], None],
        *,
        asks: Callable[[], bool] = lambda: True,
        stage: Stage = Stage.EXPERIMENTS,
        likely: float = 0.5,  # of what the end of the run asks for
        runs: float = 1,
        first: float = 1,
        due: bool = False,
    ) -> None:
        self.looks.add(
            Look(
                name=name,
                group=EXPERIMENTS,
                stage=stage,
                likely=likely,
                runs=runs,
                first=first,
                due=due,
                rest="further experiments",
                asks=asks,
                work=work,
            )
        )

    def _tell(self, **found: Any) -> None:
        self.pattern = replace(self.pattern, **found)

    def _mend(self) -> None:
        """Which call before the exception, changed, lets the step through."""
        if self.experiments.same().error:  # it raises again
            self.pattern = replace(self.pattern, mended=mended_call(self._trials, self._capsule))

    def _first_step(self) -> None:
        trial = self.experiments.same()
        first = Experiment(
            key="same-again",
            name="the first step",
            outcome=PASSES if trial.healthy else FAILS,
            loss=trial.loss,
            seconds=round(trial.seconds, 4),
        )
        self.pattern = replace(self.pattern, experiments=(first,))

    def _one_batch(self, overfit: Overfit) -> None:
        self._evidence = replace(self._evidence, overfit=overfit.facts())

    def overfit(self, evidence: Evidence) -> Evidence:
        """The evidence of a run on one batch alone, with its control."""
        losses, overfit = evidence.losses, self._overfit
        sick = evidence.trip is not None or evidence.failure is not None
        if overfit is None or len(losses) < 2 or sick:
            return evidence
        self._evidence = evidence
        self._add(
            "one batch with its inputs zeroed",
            lambda place: self._overfit_facts(overfit),
            stage=Stage.LARGER_STEPS,
            likely=1.0,
            due=True,  # the user has asked for it
        )
        self.looks.run(Stage.LARGER_STEPS)
        return self._evidence

    def _overfit_facts(self, overfit: Overfit) -> None:
        facts = overfit.asked_for(self._evidence.inspection, self._evidence.losses)
        self._evidence = replace(self._evidence, overfit=facts)

    def guilty_samples(self) -> tuple[int, ...] | None:
        """The samples of the only batch that fail alone while the others pass."""
        if shares_statistics(self._trials.runner.recipe.model) or indivisible(self._capsule):
            return None
        self._say("searching for the samples that fail alone …")
        self.experiments.same()
        search = GuiltySamples(
            Parts(self._capsule),
            lambda rows: fails(self._trials.outcome(rows)),
            self._trials.place.deadline,
        )
        nothing: tuple[int, ...] = ()
        return self._trials.in_time(search.search, nothing) or None

    def treat(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with the experiments' rows, the guilty samples and their fixes tried."""
        done = [with_rows(finding, self.pattern) for finding in findings]
        if not findings or self._only is not None or self.looks.interrupted or self.untold:
            return tuple(done)
        treatment = Treatment(self._trials, self._step, self, self._evidence, self._say, self._past)
        chosen = [treatment.with_cause(finding) for finding in done[:_MOST_FINDINGS]]

        def treat(place: Place) -> None:
            for number, finding in enumerate(chosen):
                seconds, what = self._trials.seconds, f"the fixes of {finding.code}"
                if can_be_treated(finding) and place.allows(seconds, what):
                    chosen[number] = treatment.treated(finding)

        self._add(
            "fixes",
            treat,
            asks=lambda: any(map(can_be_treated, chosen)),
            stage=Stage.FIXES,
            likely=0.9,  # what was found is nearly always what is wrong
            runs=sum(len(finding.fixes) for finding in chosen),
        )
        self.looks.run(Stage.FIXES)
        return (*chosen, *done[_MOST_FINDINGS:])

    # -- before the rules --------------------------------------------------------------------------

    def _experiment(self, evidence: Evidence) -> None:
        if evidence.optimizers:  # the weights are sick, not the step
            self._look_back(evidence, self._step.capsule.step, broke=True)
            return
        found = []
        for key in self.experiments.keys if self._only is None else ("same-again", self._only):
            experiment = self.experiments.one(key)
            found += [experiment] if experiment is not None else []
            self.pattern = replace(self.pattern, experiments=tuple(found))
            if key == "same-again" and (self.pattern.passes(key) or self._raises_anew(evidence)):
                break  # nothing that is tried could show anything
            if (
                key == "other-batch"
                and self.pattern.passes(key) is False
                and self.experiments.moved_outside()
            ):
                self._moved()
                break
        if self.untold:
            return
        if not self.pattern.passes("same-again"):
            self._look_back(evidence, self._step.capsule.step, broke=True)
        # a NaN that only a probe saw leaves the step healthy, again and again
        if not evidence.probed:
            self.decide(None)

    def _raises_anew(self, evidence: Evidence) -> bool:
        """Run again, the step ends in an exception that the run did not end in: it is not the same
        step any more."""
        baseline = self.experiments.same()
        if not baseline.error or evidence.failure is not None:
            return False
        self._untell("same again", f"not run: the step raises {baseline.error} when it is re-run")
        return True

    def _moved(self) -> None:
        self._untell(
            "another batch",
            "not run: a batch that passed in the run now fails even with the weights of step 0, so "
            "state that nanodoc can't restore has changed",
        )

    def _untell(self, name: str, why: str) -> None:
        """Replaces all rows but the first by the reason why they would mean nothing."""
        first = self.pattern.experiments[:1] if name != "same again" else ()
        self.pattern = replace(
            self.pattern,
            experiments=(*first, Experiment(key="other-batch", name=name, outcome=why)),
        )
        self.untold = True

    def _look_back(
        self, evidence: Evidence, until: int, *, broke: bool, repeat: bool = True
    ) -> None:
        if (checkpoints := self._step.checkpoints) is None or (past := self._past) is None:
            return
        # a train_step has moved the weights since
        olds = (self._step.capsule.weights if broke else None) or [None] * len(self._named)
        named = zip(self._named, olds, strict=True)
        weights = [(name, p if old is None else old) for (name, p), old in named]
        growth = growth_until(evidence, checkpoints, weights, self._trials, self._capsule)
        self.pattern = replace(self.pattern, growth=growth)
        if (
            not repeat
            or not (growth.seen or evidence.optimizers)
            or until < 1
            or (self.pattern.passes("other-batch") and (growth.loss or 0) < _FAR)
        ):
            return
        course = past.course(until, broke=broke)
        if course is None and not checkpoints.before(until):
            why = checkpoints.note or f"none are left from before step {until}"
            why = f"no earlier weights were kept: {why}"
            self.looks.notes.append(("smaller learning rates", why))
        self.pattern = replace(self.pattern, course=course)
        if course is not None and course.repeated and evidence.losses:
            first, made_at = evidence.losses[0], self._step.initialised_at
            wide = wide_weights(past, self._recipe.model, first, until, made_at)
            optimizers = list(self._recipe.optimizers)
            scaled = loss_scale(past, self._trials, optimizers, until)
            self.pattern = replace(self.pattern, growth=replace(growth, wide=wide, scaled=scaled))
            if (betas := turned_betas(optimizers)) is not None:
                self.pattern = replace(self.pattern, betas=past.with_turned_betas(until, betas))
            if wide is None:
                self._course.standardised(evidence, past, until, course)

    def decide(self, guilty: bool | None) -> None:
        """What the pattern says was the cause. `guilty`: whether samples fail alone."""
        cause, why = read(self.pattern, guilty=guilty)
        self.pattern = replace(self.pattern, cause=cause, why=why)
