"""Fixes tried on the step that failed, and the samples found that make it fail."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding, Fix
from nanodoc.diagnosis.remedy import (
    AutocastOff,
    Bfloat16,
    ChangeInput,
    Clip,
    Float32Call,
    Float32Module,
    LossScale,
    LowerRate,
    Remedy,
    ReplaceArgument,
    ReplaceConstant,
    SetKeyword,
    SetOption,
    Unchanged,
    UnscaleFirst,
    WithoutBatch,
    WithoutSamples,
)
from nanodoc.experiments.call_site import Applied, Patch
from nanodoc.experiments.fix_order import best_first
from nanodoc.experiments.guilty_samples import SEARCH, Blame
from nanodoc.experiments.past import Past
from nanodoc.experiments.patches import Patched, patch_for
from nanodoc.experiments.samples import parts_of, shares_statistics
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Say, StepTrials, Trial, fails
from nanodoc.facts.trials import Pattern
from nanodoc.replay.step_state import StepState
from nanodoc.report.report import ANOTHER_BATCH, FLOAT32, FLOAT64, THE_STEP, UNMEASURED
from nanodoc.tensors.nested import batch_size
from nanodoc.watchers.skipped_steps import at_scale

_HALVINGS = 20
_MORE = 1.5  # times the gradient norm that the clip left before
_UNCHANGED = Unchanged()
LEFT_OUT = Fix(
    title="drop these samples or fix them in the dataset",
    confidence="maybe",
    remedy=WithoutSamples(),
)
# what is tried on a step whose loss and gradients are finite without the scale
WITHOUT_FAILURE = (LossScale, UnscaleFirst)
# more than the values that are not finite
_CHANGES_VALUES = (ReplaceArgument, ReplaceConstant, SetKeyword)
_IN_ANOTHER_DTYPE = (Float32Module, Float32Call, Bfloat16)
_HARMLESS = 1e-3  # a fix may move the loss of healthy samples by this much, relative to it
# one that computes in another dtype by this: bfloat16 has three significant digits
_PRECISION = 2e-2
_SHORTEST = 10  # steps that can show where a loss goes
_CLEARLY = 0.1  # of the loss


class Remedies:
    """Tries what the findings on one step propose."""

    def __init__(
        self,
        trials: StepTrials,
        step: Step,
        pattern: Pattern,
        *,
        say: Say,
        past: Past | None = None,
        losses: Sequence[float] = (),
    ) -> None:
        self._trials = trials
        self._elsewhere = step.elsewhere
        self._pattern = pattern
        # without the loss scale: an overflow that only the scale makes is skipped by the scaler,
        # and is no failure
        self._capsule = at_scale(step.capsule, trials.runner.device)
        self._scaled = step.capsule
        self._half = step.half
        self._say = say
        self._indices = step.indices
        self._blame = Blame(trials, self._capsule, step.indices, say)
        self._past = past
        self._losses = losses
        self._others: tuple[StepState, float, str] | None = None
        """Another batch to measure a fix on, its loss, and what it is."""
        self._done: dict[Remedy, Trial] = {}

    @property
    def guilty(self) -> bool:
        """Samples were found that fail alone while the others pass."""
        return self._blame.guilty

    def unhealthy(self) -> bool:
        """The step as it was fails."""
        return not self._try(_UNCHANGED).healthy

    def on(self, finding: Finding) -> Finding:
        """The finding with its fixes tried."""
        fixes = []
        for fix in finding.fixes:
            if fix.remedy is not None:
                self._say(f"trying: {fix.title} …")
            fixes.append(self._tried(fix, finding))
        if self.guilty and not any(fix.verified for fix in fixes):
            fixes.append(replace(LEFT_OUT, verified=True))
        return replace(finding, fixes=best_first(fixes))

    def guilty_samples(self, finding: Finding) -> Finding:
        """The samples that alone make the step fail, where some do and the others don't."""
        return self._blame.look(
            fails, finding, divisible=not shares_statistics(self._trials.runner.recipe.model)
        )

    def raising_samples(self, finding: Finding) -> Finding:
        """The samples that alone raise what the batch raised, at the same line, where some do and
        the others pass."""
        raised = self._try(_UNCHANGED).raised
        if raised is None:
            return finding
        found = self._blame.look(lambda trial: trial.raised == raised, finding)
        fixes = [
            self._tried(fix, found) if isinstance(fix.remedy, ChangeInput) else fix
            for fix in found.fixes
        ]
        if found is not finding:
            fixes.append(replace(LEFT_OUT, verified=True))
        return replace(found, fixes=tuple(fixes))

    # -- one fix -----------------------------------------------------------------------------------

    def _tried(self, fix: Fix, finding: Finding) -> Fix:
        remedy = fix.remedy
        what = f"the fixes of {finding.code}"
        if remedy is None or not self._trials.place.allows(self._trials.seconds, what):
            return fix
        return self._trials.in_time(lambda: self._tried_as(remedy, fix, finding), fix, what)

    def _tried_as(self, remedy: Remedy, fix: Fix, finding: Finding) -> Fix:
        if remedy.whole_run:
            return self._on_the_run(fix, remedy)
        if isinstance(remedy, LossScale):
            return self._scale_that_works(fix, remedy)
        if isinstance(remedy, UnscaleFirst):
            return self._unscaled_first(fix)
        if isinstance(remedy, (LowerRate, Clip)):
            return self._smaller_steps(fix, remedy)
        if isinstance(remedy, SetOption):
            passes = (
                self._past.with_option(self._scaled.step, remedy.keyword, remedy.value)
                if self._past is not None
                else None
            )
            return replace(fix, verified=passes)
        if isinstance(remedy, WithoutSamples):
            return self._left_out(fix, finding)
        if isinstance(remedy, WithoutBatch):
            return self._batch_left_out(fix)
        trial = self._try(remedy)
        if not trial.applied or self._goes_further(remedy, trial):
            return fix
        if not trial.healthy:
            return replace(fix, verified=False)
        change, whose = self._change(remedy, trial)
        if change is None and isinstance(remedy, _CHANGES_VALUES):
            return replace(fix, loss_of=UNMEASURED)  # finite, but perhaps another model
        limit = _PRECISION if isinstance(remedy, _IN_ANOTHER_DTYPE) else _HARMLESS
        return replace(
            fix, verified=change is None or change < limit, loss_change=change, loss_of=whose
        )

    def _goes_further(self, remedy: Remedy, trial: Trial) -> bool:
        """The call that raised goes through, and another one raises: that says nothing."""
        changed = isinstance(remedy, ChangeInput) and trial.raised is not None
        return changed and trial.raised != self._try(_UNCHANGED).raised

    def _on_the_run(self, fix: Fix, remedy: Remedy) -> Fix:
        """All steps from the first, with the fix in place: the last losses must be lower than the
        run's own."""
        if self._past is None:
            return fix
        applied = Applied()
        course = self._past.with_patch(
            lambda: self._patch(remedy, applied) or contextlib.nullcontext()
        )
        if course is None or not applied.yes or len(course.losses) < _SHORTEST:
            return fix
        own, number = self._losses[: len(course.losses)], max(len(course.losses) // 10, 3)
        before, after = statistics.median(own[-number:]), statistics.median(course.losses[-number:])
        if not course.complete:
            return fix
        lower = not math.isfinite(before) or after < before - _CLEARLY * abs(before)
        told = (
            f"the same {len(course.losses)} steps end at a loss of {after:.3g} instead of "
            f"{before:.3g}"
        )
        return replace(fix, verified=True if lower else None, outcome=told)

    def _smaller_steps(self, fix: Fix, remedy: LowerRate | Clip) -> Fix:
        course = self._pattern.course
        if course is None:
            return fix
        for stretch in course.stretches:
            if isinstance(remedy, Clip):
                same = stretch.clip == remedy.norm
            else:
                same = stretch.clip is None and stretch.rate == remedy.factor
            if same:
                return replace(fix, verified=stretch.passes)
        return fix

    def _left_out(self, fix: Fix, finding: Finding) -> Fix:
        """Verified by the batch without these samples, where they are known."""
        if self.guilty:
            return replace(fix, verified=True)
        samples = set(finding.culprit.samples)
        parts = parts_of(
            self._capsule,
            self._trials.runner.recipe.data,
            self._indices,
            self._trials.place.part(SEARCH),
        )
        rest = [row for row in range(parts.size) if row not in samples] if parts is not None else []
        if (
            parts is None
            or not samples
            or not rest
            or shares_statistics(self._trials.runner.recipe.model)
        ):
            return fix
        others = parts.of(rest)
        if others is None:
            return fix
        without = self._trials.outcome(others)
        return replace(fix, verified=without.healthy) if without.applied else fix

    def _batch_left_out(self, fix: Fix) -> Fix:
        """Verified where this batch is smaller than another, and that one passes."""
        found = self._elsewhere.other() if self._pattern.passes("other-batch") else None
        sizes = (
            [batch_size(batches[0]) for batches in (self._capsule.batches, found[1])]
            if found is not None
            else []
        )
        return (
            replace(fix, verified=True)
            if len(sizes) == 2 and (sizes[0] or 0) < (sizes[1] or 0)
            else fix
        )

    def _unscaled_first(self, fix: Fix) -> Fix:
        """Verified if the clip then leaves more of the gradients: without it, its limit is divided
        by the loss scale. Not tried where the train_step clears its gradients before it returns."""
        assert fix.remedy is not None
        before, after = self._trials.outcome(self._scaled), self._outcome(self._scaled, fix.remedy)
        if not after.applied or not before.grad_norm > 0:
            return fix
        return replace(fix, verified=after.healthy and after.grad_norm > _MORE * before.grad_norm)

    def _change(self, remedy: Remedy, trial: Trial) -> tuple[float | None, str]:
        """How far the fix moves a loss that was healthy, relative to it, and whose loss that is."""
        same = self._try(_UNCHANGED)
        # only the gradients were sick
        healthy = self._blame.rest or self._others
        if healthy is None and same.loss is not None and math.isfinite(same.loss):
            return _relative(trial.loss, same.loss), THE_STEP
        others = healthy or self._other_batch()
        if others is not None:
            capsule, before, whose = others
            after = self._outcome(capsule, remedy)
            if after.healthy or after.applied:
                return _relative(after.loss, before) if after.healthy else math.inf, whose
            # nothing to change there: the fix leaves it alone
            untouched = self._trials.outcome(capsule)
            return (0.0 if untouched.healthy else math.inf), whose
        bears = next(
            (
                experiment
                for experiment in self._pattern.experiments
                if experiment.key == "float64" and self._pattern.passes("float64")
            ),
            None,
        )
        if bears is not None and bears.loss is not None and not self._half:
            return _relative(trial.loss, bears.loss), FLOAT64
        exact = self._try(AutocastOff()) if self._half else None
        if exact is None or not (exact.applied and exact.healthy) or exact.loss is None:
            return None, ""
        return _relative(trial.loss, exact.loss), FLOAT32

    def _other_batch(self) -> tuple[StepState, float, str] | None:
        """A batch that passes with these weights, where there is one."""
        if self._half or not self._pattern.passes("other-batch"):
            return None
        found = self._elsewhere.other()
        if found is None:
            return None
        capsule = replace(self._capsule, batches=found[1], rng=found[2] or self._capsule.rng)
        trial = self._trials.outcome(capsule)
        if not trial.healthy or trial.loss is None:
            return None
        self._others = (capsule, trial.loss, ANOTHER_BATCH)
        return self._others

    def _scale_that_works(self, fix: Fix, remedy: LossScale) -> Fix:
        scale = remedy.value or 65536.0
        for _ in range(_HALVINGS):
            scale /= 2
            trial = self._try(replace(remedy, value=scale))
            if trial.applied and trial.healthy:
                return replace(fix, title=f"{fix.title} (init_scale={scale:g})", verified=True)
        return replace(fix, verified=False)

    def _try(self, remedy: Remedy) -> Trial:
        known = self._done.get(remedy)
        if known is None:
            capsule = self._capsule
            if isinstance(remedy, LossScale):
                capsule = at_scale(capsule, self._trials.runner.device, remedy.value or 1.0)
            known = self._done[remedy] = self._outcome(capsule, remedy)
            if remedy == _UNCHANGED:
                self._trials.raises = known.error.partition(":")[0]
        return known

    def _patch(self, remedy: Remedy, applied: Applied) -> Patch | None:
        on = Patched(self._trials.runner, self._trials.keeper, applied)
        return patch_for(remedy, on)

    def _outcome(self, capsule: StepState, remedy: Remedy) -> Trial:
        if remedy == _UNCHANGED:
            return self._trials.outcome(capsule)
        applied = Applied()
        patch = self._patch(remedy, applied)
        if patch is None:
            return Trial(applied=False, healthy=False, loss=None, seconds=0.0)
        return self._trials.outcome(capsule, patch, applied)


def _relative(after: float | None, before: float) -> float | None:
    return abs(after - before) / max(abs(before), 1e-12) if after is not None else None
