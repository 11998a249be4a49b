"""Fixes tried and causes ruled out: one step is run again with one thing changed, when the run is over."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanodoc.differential import patches
from nanodoc.differential.samples import GuiltySamples, not_bisectable, part
from nanodoc.engine.aside import put_back
from nanodoc.engine.batches import batch_size
from nanodoc.engine.capsule import Keeper, StepCapsule
from nanodoc.engine.replaying import Replayer
from nanodoc.engine.skips import at_scale
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.report.model import OTHERS, Finding, Fix, Remedy

_MOST_FINDINGS = 3
_HALVINGS = 20
_MORE = 1.5  # times the gradient norm that the clip left before
_UNCHANGED = Remedy(kind="unchanged")
_WITHOUT_FAILURE = {"loss-scale", "unscale-first"}  # what is tried on a step whose loss and gradients are finite without the scale
_SECONDS = 5.0  # for the search of guilty samples
_HARMLESS = 1e-3  # a fix may move the loss of healthy samples by this much, relative to it
_PRECISION = 2e-2  # one that computes in another dtype by this: bfloat16 has three significant digits


@dataclass(frozen=True, slots=True)
class Trial:
    """How the step went with one thing changed."""

    applied: bool
    healthy: bool
    """It raised nothing, and loss and gradients are finite."""
    loss: float | None
    seconds: float
    grad_norm: float = math.nan
    """Of the gradients that the step left behind."""


class Trials:
    """Experiments on one capsule."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: Keeper,
        replayer: Replayer,
        capsule: StepCapsule,
        *,
        half: bool,
        indices: Sequence[int] | None = None,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._replayer = replayer
        # without the loss scale: an overflow that only the scale makes is skipped by the scaler, and is no failure
        self._capsule = at_scale(capsule, runner.device)
        self._scaled = capsule
        self._half = half
        self._indices = indices
        self._others: tuple[StepCapsule, float] | None = None
        """The step without its guilty samples, and its loss."""
        self._modules = dict(runner.recipe.model.named_modules())
        self._done: dict[Remedy, Trial] = {}

    def on(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with their fixes tried and the experiments' outcomes beside them."""
        tried = [self._with_trials(finding) for finding in findings[:_MOST_FINDINGS]]
        return (*tried, *findings[_MOST_FINDINGS:])

    def _with_trials(self, finding: Finding) -> Finding:
        kinds = {fix.remedy.kind for fix in finding.fixes if fix.remedy is not None}
        if not kinds <= _WITHOUT_FAILURE and self._try(_UNCHANGED).healthy:
            return finding  # loss and gradients are finite as it is (a probe saw the NaN): nothing that is tried could show anything
        finding = self._with_samples(finding)
        if not kinds:
            return finding
        rows = (
            [row for row in (self._row("float32 (autocast off)", None), self._row("bfloat16", torch.bfloat16)) if row is not None]
            if self._half and not kinds <= _WITHOUT_FAILURE
            else []
        )
        fixes = [self._tried(fix) for fix in finding.fixes]
        # a fix that was seen to work comes first, one that was seen to fail last; the order is the rule's otherwise
        fixes.sort(key=lambda fix: {True: 0, None: 1, False: 2}[fix.verified])
        return replace(finding, experiments=(*finding.experiments, *rows), fixes=tuple(fixes))

    def _with_samples(self, finding: Finding) -> Finding:
        """The samples that alone make the step fail, where some do and the others don't."""
        numeric = finding.code[:3] in ("ND2", "ND3") and finding.severity == "critical" and finding.culprit.kind == "op"
        if not numeric or finding.step is None or not_bisectable(self._runner.recipe.model, self._capsule) is not None:
            return finding
        search = GuiltySamples(self._capsule, lambda part: not self._outcome(part).healthy, time.monotonic() + _SECONDS)
        guilty = finding.culprit.samples
        if not search.confirm(guilty):
            guilty = search.search()
        if not guilty:
            return finding
        rest = part(self._capsule, [row for row in range(batch_size(self._capsule.batches[0]) or 0) if row not in set(guilty)])
        without = self._outcome(rest)
        if without.loss is not None:
            self._others = (rest, without.loss)
        named = ", ".join(map(str, guilty[:8])) + (", …" if len(guilty) > 8 else "")
        rows = (
            {"name": f"sample{'s' if len(guilty) > 1 else ''} {named} alone", "outcome": "fails"},
            {"name": "the batch without", "outcome": "passes", "loss": without.loss, "seconds": round(without.seconds, 3)},
        )
        at = tuple(self._indices[row] for row in guilty if row < len(self._indices)) if self._indices else finding.culprit.dataset_indices
        culprit = replace(finding.culprit, samples=tuple(guilty), dataset_indices=at)
        return replace(finding, culprit=culprit, experiments=(*finding.experiments, *rows))

    def _row(self, name: str, dtype: torch.dtype | None) -> dict[str, Any] | None:
        trial = self._try(Remedy(kind="autocast-off" if dtype is None else "bfloat16"))
        if not trial.applied:
            return None
        return {"name": name, "outcome": "passes" if trial.healthy else "fails too", "loss": trial.loss, "seconds": round(trial.seconds, 3)}

    def _tried(self, fix: Fix) -> Fix:
        if fix.remedy is None:
            return fix
        if fix.remedy.kind == "loss-scale":
            return self._scale_that_works(fix)
        if fix.remedy.kind == "unscale-first":
            return self._unscaled_first(fix)
        trial = self._try(fix.remedy)
        if not trial.applied:
            return fix
        if not trial.healthy:
            return replace(fix, verified=False)
        change, whose = self._change(fix.remedy, trial)
        limit = _PRECISION if fix.remedy.kind in ("float32-module", "float32-call", "bfloat16") else _HARMLESS
        return replace(fix, verified=change is None or change < limit, loss_change=change, loss_of=whose)

    def _unscaled_first(self, fix: Fix) -> Fix:
        """Verified if the clip then leaves more of the gradients: without it, its limit is divided by the loss scale. Not tried where the
        train_step clears its gradients before it returns."""
        assert fix.remedy is not None
        before, after = self._outcome(self._scaled), self._outcome(self._scaled, fix.remedy)
        if not after.applied or not before.grad_norm > 0:
            return fix
        return replace(fix, verified=after.healthy and after.grad_norm > _MORE * before.grad_norm)

    def _change(self, remedy: Remedy, trial: Trial) -> tuple[float | None, str]:
        """How far the fix moves a loss that was healthy, relative to it, and whose loss that is."""
        if self._others is not None:
            capsule, before = self._others
            after = self._outcome(capsule, remedy)
            return _relative(after.loss, before) if after.healthy else math.inf, OTHERS
        exact = self._try(Remedy(kind="autocast-off")) if self._half else None
        if exact is None or not (exact.applied and exact.healthy) or exact.loss is None:
            return None, ""
        return _relative(trial.loss, exact.loss), "float32"

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
            known = self._done[remedy] = self._run(remedy)
        return known

    def _run(self, remedy: Remedy) -> Trial:
        capsule = self._capsule if remedy.kind != "loss-scale" else at_scale(self._capsule, self._runner.device, remedy.value or 1.0)
        return self._outcome(capsule, remedy)

    def _outcome(self, capsule: StepCapsule, remedy: Remedy | None = None) -> Trial:
        """How one step goes, with the remedy's patch in place."""
        applied, began = patches.Applied(), time.perf_counter()
        patch = self._patch(remedy, applied) if remedy not in (None, _UNCHANGED) else contextlib.nullcontext()
        if patch is None:
            return Trial(applied=False, healthy=False, loss=None, seconds=0.0)
        with put_back(self._runner, self._keeper):
            try:
                with patch:
                    replay = self._replayer.replay(capsule)
            except (UserCodeError, UsageError, RuntimeError):  # the change itself doesn't fit this program
                return Trial(applied=False, healthy=False, loss=None, seconds=time.perf_counter() - began)
        loss = sum(replay.losses) / len(replay.losses) if replay.losses else None
        healthy = replay.error is None and not replay.bad_parameters and loss is not None and math.isfinite(loss)
        return Trial(applied.yes and replay.error is None, healthy, loss, time.perf_counter() - began, replay.grad_norm)

    def _patch(self, remedy: Remedy | None, applied: patches.Applied) -> contextlib.AbstractContextManager[Any] | None:
        device, scaler = self._runner.device.type, self._keeper.scaler
        if remedy is None:
            return None
        if remedy.kind == "autocast-off":
            return patches.autocast_in(None, applied)
        if remedy.kind == "bfloat16":
            return patches.autocast_in(torch.bfloat16, applied)
        if remedy.kind == "float32-module" and remedy.module in self._modules:
            return patches.float32_module(self._modules[remedy.module], device, applied)
        if remedy.kind == "float32-call" and remedy.location is not None:
            return patches.float32_call(remedy.location, device, applied)
        if remedy.kind == "constant" and remedy.location is not None and remedy.value is not None and remedy.replacement is not None:
            return patches.constant_at(remedy.location, remedy.value, remedy.replacement, applied)
        if remedy.kind == "argument" and remedy.location is not None and remedy.op is not None and remedy.template is not None:
            return patches.argument_at(remedy.location, remedy.op, remedy.position, remedy.template, applied)
        if remedy.kind == "log-softmax" and remedy.location is not None:
            return patches.log_softmax_at(remedy.location, applied)
        if remedy.kind == "unscale-first" and scaler is not None:
            return patches.unscaled_before_clipping(scaler, self._runner.recipe.optimizers, applied)
        if remedy.kind == "loss-scale" and scaler is not None:
            applied.yes = True
            return contextlib.nullcontext()
        return None


def _relative(after: float | None, before: float) -> float | None:
    return abs(after - before) / max(abs(before), 1e-12) if after is not None else None
