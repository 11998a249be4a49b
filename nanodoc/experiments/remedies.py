"""Fixes tried on the step that failed, and the samples found that make it fail."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding, Fix, Remedy
from nanodoc.experiments import patches
from nanodoc.experiments.call_site import Applied
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.past import Past
from nanodoc.experiments.samples import GuiltySamples, parts_of, shares_statistics
from nanodoc.experiments.trial import Say, StepTrials, Trial, fails
from nanodoc.facts.trials import Pattern
from nanodoc.replay.step_state import StepState
from nanodoc.report.report import ANOTHER_BATCH, FLOAT32, FLOAT64, OTHERS, THE_STEP, UNMEASURED
from nanodoc.tensors.nested import batch_size
from nanodoc.watch.skipped_steps import at_scale

_HALVINGS = 20
_MORE = 1.5  # times the gradient norm that the clip left before
_UNCHANGED = Remedy(kind="unchanged")
LEFT_OUT = Fix(
    title="leave these samples out, or repair them in the data set",
    confidence="maybe",
    remedy=Remedy(kind="without-samples"),
)
# what is tried on a step whose loss and gradients are finite without the scale
WITHOUT_FAILURE = {"loss-scale", "unscale-first"}
_CHANGES_VALUES = {"argument", "constant", "keyword"}  # more than the values that are not finite
_OF_THE_PAST = {"lower-rate", "clip"}  # tried on the steps before the one that failed
_HARMLESS = 1e-3  # a fix may move the loss of healthy samples by this much, relative to it
# one that computes in another dtype by this: bfloat16 has three significant digits
_PRECISION = 2e-2
_SHORTEST = 10  # steps that can show where a loss goes
_CLEARLY = 0.1  # of the loss
_SEARCH = 0.25  # share of the time left that the search of guilty samples may take
_MOST_FIXES = 3  # shown of those that were tried


class Remedies:
    """Tries what the findings on one step propose."""

    def __init__(
        self,
        trials: StepTrials,
        capsule: StepState,
        elsewhere: Elsewhere,
        pattern: Pattern,
        *,
        half: bool,
        say: Say,
        indices: Sequence[int] | None = None,
        past: Past | None = None,
        losses: Sequence[float] = (),
    ) -> None:
        self._trials = trials
        self._elsewhere = elsewhere
        self._pattern = pattern
        # without the loss scale: an overflow that only the scale makes is skipped by the scaler,
        # and is no failure
        self._capsule = at_scale(capsule, trials.runner.device)
        self._scaled = capsule
        self._half = half
        self._say = say
        self._indices = indices
        self._past = past
        self._losses = losses
        self._others: tuple[StepState, float, str] | None = None
        """Something healthy to measure a fix on, its loss, and what it is."""
        self._done: dict[Remedy, Trial] = {}
        self.guilty = False
        """Samples were found that fail alone while the others pass."""

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
        return replace(finding, fixes=_best_first(fixes))

    def guilty_samples(self, finding: Finding) -> Finding:
        """The samples that alone make the step fail, where some do and the others don't."""
        return self._samples_that(
            fails, finding, divisible=not shares_statistics(self._trials.runner.recipe.model)
        )

    def raising_samples(self, finding: Finding) -> Finding:
        """The samples that alone raise what the batch raised, at the same line, where some do and
        the others pass."""
        raised = self._try(_UNCHANGED).raised
        if raised is None:
            return finding
        found = self._samples_that(lambda trial: trial.raised == raised, finding)
        return (
            found
            if found is finding
            else replace(found, fixes=(*found.fixes, replace(LEFT_OUT, verified=True)))
        )

    def _samples_that(
        self, fail: Callable[[Trial], bool], finding: Finding, *, divisible: bool = True
    ) -> Finding:
        """Unless `divisible`, a part of a batch would tell nothing."""
        if not self._trials.budget.allows(self._trials.seconds):
            return finding
        capsule, indices, before = self._capsule, self._indices, ""
        if len(capsule.batches) > 1:
            self._say("looking for the micro-batch that fails alone …")
            number = self._guilty_micro_batch(capsule, fail)
            if number is None:
                return finding
            sizes = [batch_size(batch) or 0 for batch in capsule.batches]
            first, before = sum(sizes[:number]), f"micro-batch {number}, "
            capsule, indices = (
                replace(capsule, batches=[capsule.batches[number]]),
                indices[first : first + sizes[number]] if indices else None,
            )
            if sizes[number] == 1:
                rest = replace(
                    self._capsule,
                    batches=[one for i, one in enumerate(self._capsule.batches) if i != number],
                )
                return self._blamed(finding, (0,), rest, indices, before)
        parts = (
            parts_of(
                capsule, self._trials.runner.recipe.data, indices, self._trials.budget.part(_SEARCH)
            )
            if divisible
            else None
        )
        if parts is None:
            return finding
        self._say("looking for the samples that fail alone …")
        search = GuiltySamples(
            parts, lambda rows: fail(self._trials.outcome(rows)), self._trials.budget.part(_SEARCH)
        )
        guilty = finding.culprit.samples
        if not search.confirm(guilty):
            guilty = search.search()
        if not guilty:
            return finding
        others = parts.of([row for row in range(parts.size) if row not in set(guilty)])
        return (
            self._blamed(finding, guilty, others, indices, before, search.company)
            if others is not None
            else finding
        )

    def _guilty_micro_batch(self, capsule: StepState, fail: Callable[[Trial], bool]) -> int | None:
        """The only one of several micro-batches that fails alone."""
        failing = [
            i
            for i, batch in enumerate(capsule.batches)
            if fail(self._trials.outcome(replace(capsule, batches=[batch])))
        ]
        return failing[0] if len(failing) == 1 else None

    def _blamed(
        self,
        finding: Finding,
        guilty: Sequence[int],
        rest: StepState,
        indices: Sequence[int] | None,
        before: str,
        company: int = 0,
    ) -> Finding:
        without = self._trials.outcome(rest)
        if not without.healthy:
            return finding
        if without.loss is not None:
            self._others = (rest, without.loss, OTHERS)
        self.guilty = True
        named = ", ".join(map(str, guilty[:8])) + (", …" if len(guilty) > 8 else "")
        each = ", each" if len(guilty) > 1 else ""
        how = f"{each} with {company} that pass" if company else " alone"
        rows = (
            {
                "name": f"{before}sample{'s' if len(guilty) > 1 else ''} {named}{how}",
                "outcome": "fails",
                "loss": None,
                "seconds": None,
            },
            {
                "name": "the batch without",
                "outcome": "passes",
                "loss": without.loss,
                "seconds": round(without.seconds, 4),
            },
        )
        at = (
            tuple(indices[row] for row in guilty if row < len(indices))
            if indices
            else finding.culprit.dataset_indices
        )
        culprit = replace(finding.culprit, samples=tuple(guilty), dataset_indices=at)
        return replace(finding, culprit=culprit, experiments=(*finding.experiments, *rows))

    # -- one fix -----------------------------------------------------------------------------------

    def _tried(self, fix: Fix, finding: Finding) -> Fix:
        remedy = fix.remedy
        if remedy is None or not self._trials.budget.allows(self._trials.seconds):
            return fix
        if remedy.whole_run:
            return self._on_the_run(fix, remedy)
        if remedy.kind == "loss-scale":
            return self._scale_that_works(fix)
        if remedy.kind == "unscale-first":
            return self._unscaled_first(fix)
        if remedy.kind in _OF_THE_PAST:
            return self._smaller_steps(fix, remedy)
        if remedy.kind == "option" and remedy.keyword is not None and remedy.value is not None:
            passes = (
                self._past.with_option(self._scaled.step, remedy.keyword, remedy.value)
                if self._past is not None
                else None
            )
            return replace(fix, verified=passes)
        if remedy.kind == "without-samples":
            return self._left_out(fix, finding)
        if remedy.kind == "without-batch":
            return self._batch_left_out(fix)
        trial = self._try(remedy)
        if not trial.applied:
            return fix
        if not trial.healthy:
            return replace(fix, verified=False)
        change, whose = self._change(remedy, trial)
        if change is None and remedy.kind in _CHANGES_VALUES:
            return replace(fix, loss_of=UNMEASURED)  # finite, but perhaps another model
        limit = _PRECISION if remedy.kind in patches.IN_ANOTHER_DTYPE else _HARMLESS
        return replace(
            fix, verified=change is None or change < limit, loss_change=change, loss_of=whose
        )

    def _on_the_run(self, fix: Fix, remedy: Remedy) -> Fix:
        """All steps from the first, with the fix in place: the last losses must be lower than the
        run's own."""
        if self._past is None:
            return fix
        applied = Applied()
        course = self._past.with_patch(
            lambda: (
                patches.patch_for(remedy, self._trials.runner, self._trials.keeper, applied)
                or contextlib.nullcontext()
            )
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

    def _smaller_steps(self, fix: Fix, remedy: Remedy) -> Fix:
        course = self._pattern.course
        if course is None:
            return fix
        for one in course.stretches:
            if (remedy.kind == "clip" and one.clip == remedy.value) or (
                remedy.kind == "lower-rate" and one.clip is None and one.rate == remedy.value
            ):
                return replace(fix, verified=one.passes)
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
            self._trials.budget.part(_SEARCH),
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
        other = self._elsewhere.other() if self._pattern.passes("other-batch") else None
        sizes = (
            [batch_size(capsule[0]) for capsule in (self._capsule.batches, other[1])]
            if other is not None
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
        if self._others is None and same.loss is not None and math.isfinite(same.loss):
            return _relative(trial.loss, same.loss), THE_STEP
        others = self._others or self._other_batch()
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
                one
                for one in self._pattern.experiments
                if one.key == "float64" and self._pattern.passes("float64")
            ),
            None,
        )
        if bears is not None and bears.loss is not None and not self._half:
            return _relative(trial.loss, bears.loss), FLOAT64
        exact = self._try(Remedy(kind="autocast-off")) if self._half else None
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

    def _scale_that_works(self, fix: Fix) -> Fix:
        assert fix.remedy is not None
        scale = fix.remedy.value or 65536.0
        for _ in range(_HALVINGS):
            scale /= 2
            trial = self._try(replace(fix.remedy, value=scale))
            if trial.applied and trial.healthy:
                return replace(fix, title=f"{fix.title} (init_scale={scale:g})", verified=True)
        return replace(fix, verified=False)

    def _try(self, remedy: Remedy) -> Trial:
        known = self._done.get(remedy)
        if known is None:
            at = remedy.value or 1.0
            capsule = (
                at_scale(self._capsule, self._trials.runner.device, at)
                if remedy.kind == "loss-scale"
                else self._capsule
            )
            known = self._done[remedy] = self._outcome(capsule, remedy)
            if remedy == _UNCHANGED:
                self._trials.raises = known.error.partition(":")[0]
        return known

    def _outcome(self, capsule: StepState, remedy: Remedy) -> Trial:
        if remedy == _UNCHANGED:
            return self._trials.outcome(capsule)
        applied = Applied()
        patch = patches.patch_for(remedy, self._trials.runner, self._trials.keeper, applied)
        if patch is None:
            return Trial(applied=False, healthy=False, loss=None, seconds=0.0)
        return self._trials.outcome(capsule, patch, applied)


def _best_first(fixes: list[Fix]) -> tuple[Fix, ...]:
    """Fixes that were seen to work come first, of those the one that moves the healthy part least,
    and samples are left out last; one that was seen to fail is only said where nothing else is
    left. Of several ways to do the same the best is said. The order is the rule's otherwise."""
    fixes = sorted(
        fixes,
        key=lambda fix: ({True: 0, None: 1, False: 2}[fix.verified], _leaves_out(fix), _moved(fix)),
    )
    best: dict[str, Fix] = {}
    for fix in fixes:
        best.setdefault(fix.title, fix)
    useful = [fix for fix in best.values() if fix.verified is not False]
    return tuple(useful[:_MOST_FIXES] or fixes[:1])


def _leaves_out(fix: Fix) -> bool:
    return (
        bool(fix.verified)
        and fix.remedy is not None
        and fix.remedy.kind in ("without-samples", "without-batch")
    )


def _moved(fix: Fix) -> float:
    """The order of magnitude by which a verified fix moves what was healthy; differences of
    rounding don't count."""
    if not fix.verified or not fix.loss_change:
        return -12.0
    return max(-7.0, math.floor(math.log10(fix.loss_change)))


def _relative(after: float | None, before: float) -> float | None:
    return abs(after - before) / max(abs(before), 1e-12) if after is not None else None
