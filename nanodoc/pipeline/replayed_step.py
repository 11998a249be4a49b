"""A snapshot's step in a freshly built recipe: what it shows, and what was asked for besides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.accelerator import has_float64
from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.examination.non_finite import Examiner
from nanodoc.examination.traceback import describe_failure
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.facts.evidence import Evidence, Trip
from nanodoc.facts.ops import Birth
from nanodoc.looks.scheduler import Looks
from nanodoc.measure.gradients import really_nonfinite
from nanodoc.pipeline.changes import cast, only, with_settings
from nanodoc.pipeline.common import report_of, run_info
from nanodoc.pipeline.replay_options import DTYPES, ReplayOptions
from nanodoc.pipeline.snapshot_content import (
    batches_of,
    first_batches,
    gradients_of,
    is_one_of,
    mapping_of,
    random_state_of,
)
from nanodoc.progress import Progress
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.optimizers import copy_optimizer, rate_of
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.rerun import Rerunner
from nanodoc.replay.rng import RandomState
from nanodoc.replay.snapshot import differences, minimal, restore_into, save
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, copy_weights
from nanodoc.replay.traced_replay import Replay, Replayer
from nanodoc.report.report import Report, VitalSigns
from nanodoc.script.trained import Several
from nanodoc.tensors.modules import move_module
from nanodoc.trace.stop import stop_here


class ReplayedStep:
    """The step of a snapshot in a freshly built recipe, with the changes that were asked for."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        amp_dtype: torch.dtype | None,
        content: dict[str, Any],
        options: ReplayOptions,
        progress: Progress,
        config: Config,
    ) -> None:
        self._content = content
        self._options = options
        step = int(content.get("step", 0))
        fresh = copy_weights(list(recipe.model.named_parameters()), host=True)
        drawn = first_batches(recipe)
        template = drawn[0] if drawn else None
        restore(recipe, content)
        move_module(recipe.model, device, recipe.optimizers)
        recipe = with_settings(recipe, options.settings)
        batches = batches_of(content, template, recipe.data)
        others = [batch for batch in drawn if not is_one_of(batch, batches)]
        saved_batches = batches
        if options.dtype is not None:
            dtype = _changed_dtype(recipe, options.dtype, device)
            batches, others = (
                [cast(batch, dtype) for batch in batches],
                [cast(batch, dtype) for batch in others],
            )
        self.runner = StepRunner(recipe, device, amp_dtype)
        self.keeper = StateKeeper(recipe, device)
        capsule = self.keeper.take(step, batches)
        capsule.rng = random_state_of(content, device) or capsule.rng
        capsule.grads = gradients_of(content, list(recipe.model.parameters()))
        self._whole = replace(capsule, batches=saved_batches)
        self.capsule = only(capsule, options.samples)
        self.replayer = Replayer(self.runner, self.keeper)
        self.examiner = Examiner(self.replayer)
        self.first = self.replayer.replay_and_rewind(self.capsule)
        earlier = [replace(capsule, step=0, weights=fresh)] if step else []
        elsewhere = Elsewhere(
            other=lambda: _other(others), earlier=earlier, first=_whose_first_weights(content)
        )
        self._all_indices = indices = _indices_in(content)
        chosen = indices and options.samples
        self._indices = _of_rows(indices, options.samples) if chosen else indices
        self._births: tuple[Birth, ...] = ()
        self.differential = ExperimentRun(
            self.runner,
            self.keeper,
            self.replayer,
            Step(self.capsule, elsewhere, half=amp_dtype == torch.float16, indices=self._indices),
            Looks(config.budget),
            progress.say,
            only=options.experiment,
        )
        self._mean = _mean(self.first)
        own_step = self.runner.observing and self.first.losses
        self.loss = _told(self.first) if own_step else self._mean
        self.vitals = VitalSigns(steps=1, losses=(self.loss,), grad_norms=(self.first.grad_norm,))

    def evidence(self) -> Evidence:
        """What the step shows when it is run again."""
        recipe, first, capsule = self.runner.recipe, self.first, self.capsule
        known = mapping_of(self._content, "run")
        changed = bool(self._options.samples or self._options.settings or self._options.dtype)
        named = list(recipe.model.named_parameters())
        sick_now = [name for name, p in named if not bool(torch.isfinite(p).all())]
        failure = describe_failure(first.error) if first.error else None
        unhealthy = (
            bool(first.bad_parameters) or not math.isfinite(self.loss) or failure is not None
        )
        then = known.get("loss")  # None where the run knew none
        as_told = changed or then is None or same(then, self.loss)
        told = None
        if failure is None:
            told = self._mean if as_told or then is None else float(then)
        norm = None if changed else known.get("grad_norm")
        examined = self.examiner.examine(capsule, told, norm, self._indices) if unhealthy else None
        self._births = examined.births if examined else ()
        trip = None
        if unhealthy and failure is None:
            backward = math.isfinite(self.loss)
            trip = Trip(
                step=capsule.step,
                phase="backward" if backward else "forward",
                loss=self.loss,
                grad_norm=first.grad_norm,
                bad_parameters=tuple(first.bad_parameters or really_nonfinite(named)),
                gradients_finite=not first.bad_parameters,
            )
        note = (
            ("the weights in the snapshot are already non-finite: " + ", ".join(sick_now[:4]))
            if sick_now
            else ""
        )
        return Evidence(
            steps_run=1,
            trip=trip,
            births=self._births,
            leaves=examined.leaves if examined else (),
            failure=failure,
            failure_step=capsule.step if failure else None,
            reproduced=examined.reproduced if examined else self._as_told(known, changed=changed),
            reproduction_note=note,
            losses=(self.loss,),
            grad_norms=(first.grad_norm,),
            amp=str(self.runner.amp_dtype).removeprefix("torch.")
            if self.runner.amp_dtype
            else None,
            scaler=recipe.scaler is not None,
        )

    def _as_told(self, known: Mapping[str, Any], *, changed: bool) -> str:
        """Whether a healthy replay met what the run had met."""
        if changed or known.get("loss") is None:
            return "not_run"
        return (
            "bitwise"
            if same(self.loss, known["loss"]) and self.first.grad_norm == known.get("grad_norm")
            else "no"
        )

    def extras(
        self, artifacts: dict[str, str | None]
    ) -> tuple[tuple[Mapping[str, Any], ...], list[tuple[str, str]]]:
        """Rows and notes of what was asked for by an option."""
        rows: list[Mapping[str, Any]] = []
        notes: list[tuple[str, str]] = []
        options = self._options
        if options.experiment is not None:
            experiment = self.differential.experiments.one(options.experiment)
            if experiment is not None:
                rows.append(experiment.row())
            else:
                notes.append((options.experiment, "it would change nothing here"))
        if options.settings:
            rows.append(self._updated())
        if options.minimal is not None:
            row = self._minimised(options.minimal)
            if row is not None:
                artifacts["minimal"] = str(options.minimal)
                rows.append(row)
            else:
                why = "no smaller batch was found that fails alone while the other samples pass"
                notes.append(("--minimise", why))
        return tuple(rows), notes

    def _minimised(self, path: Path) -> Mapping[str, Any] | None:
        """Writes the snapshot with the samples that fail alone to `path`. Returns their row, None
        where there are none."""
        found = self.differential.guilty_samples()
        if found is None:
            return None
        samples = self._options.samples
        chosen = [samples[row] if samples else row for row in found]
        # of the snapshot's own batch: --dtype has changed this one
        smallest = only(self._whole, chosen)
        indices = _of_rows(self._all_indices, chosen)
        try:
            save(minimal(self._content, smallest.batches, indices), path)
        except OSError as error:
            raise UsageError(f"cannot write the minimal snapshot to {path}: {error}") from error
        named = ", ".join(map(str, chosen))
        return {"name": f"samples {named} alone", "outcome": "fails", "loss": None, "seconds": None}

    def _updated(self) -> Mapping[str, Any]:
        """The optimizer's step with the new settings, and the same batch once more."""
        named = list(self.runner.recipe.model.named_parameters())
        start = replace(
            self.capsule,
            weights=copy_weights(named),
            optimizers=[copy_optimizer(optimizer) for optimizer in self.runner.recipe.optimizers],
        )
        rates: list[list[float | torch.Tensor | None]] = [
            [rate_of(group) for group in optimizer.param_groups]
            for optimizer in self.runner.recipe.optimizers
        ]
        past = PastStep(
            self.capsule.step,
            self.capsule.batches,
            self.capsule.batch_versions,
            self.capsule.rng,
            rates,
        )
        course = Rerunner(self.runner, self.keeper).run(start, [past, past], math.inf)
        name = f"this batch once more after a step with {', '.join(self._options.settings)}"
        loss = course.losses[1] if len(course.losses) > 1 else None
        return {
            "name": name,
            "outcome": "passes" if course.complete else "fails",
            "loss": loss,
            "seconds": round(course.seconds, 4),
        }

    def differs(self, reproduced: str) -> list[str]:
        """What differs between where the snapshot was written and here."""
        found = differences(self._content, str(self.runner.device))
        if reproduced == "no":
            run = mapping_of(self._content, "run")
            told, norm = run.get("loss"), run.get("grad_norm")
            if told is not None and not same(told, self.loss):
                found.append(
                    f"the loss was {told:.6g} there, {self.loss:.6g} here: the step depends on "
                    "something that is not in the snapshot"
                )
            elif told is not None and norm is not None:
                whose = " of all ranks together" if (run.get("ranks") or 1) > 1 else ""
                found.append(
                    f"the loss is the same, and the gradients' norm was {norm:.6g}{whose} there, "
                    f"{self.first.grad_norm:.6g} here"
                )
        return found

    def ops(self) -> tuple[Any, ...]:
        return self.examiner.ops_of_slice(self.capsule) if self._options.ops else ()

    def debug(self) -> None:
        """Opens the debugger at the first birth that `evidence` met."""
        if not self._births:
            raise UsageError(
                "--pdb: the step makes no non-finite value here, so there is nowhere to stop"
            )
        birth = self._births[0]
        self.examiner.stop_at_birth(
            self.capsule, birth, lambda: stop_here(f"{birth.site.op} has run")
        )


def report_of_replay(
    again: ReplayedStep,
    path: Path,
    named: str,
    config: Config,
    more_notes: Sequence[tuple[str, str]] = (),
) -> Report:
    """The diagnosis of the step of the snapshot at `path`."""
    device, amp_dtype = again.runner.device, again.runner.amp_dtype
    evidence = again.differential.examine(again.evidence())
    info = run_info(named, "replay", config, device, amp_dtype, 1, 1, evidence.reproduced)
    artifacts: dict[str, str | None] = {"snapshot": str(path)}
    report = report_of(info, evidence, config, again.vitals, artifacts, [], False)
    findings = again.differential.treat(report.findings)
    tried, notes = again.extras(artifacts)
    differ = (
        [("bitwise reproduction", "; ".join(found))]
        if (found := again.differs(evidence.reproduced))
        else []
    )
    return replace(
        report,
        findings=findings,
        tried=tried,
        ops=again.ops(),
        artifacts=artifacts,
        interrupted=again.differential.looks.interrupted,
        not_checked=(*more_notes, *differ, *notes, *again.differential.looks.not_checked()),
    )


def _changed_dtype(recipe: Recipe, name: str, device: torch.device) -> torch.dtype:
    """The dtype of that name, into which the model is put; float64 is the default dtype from here
    on. Raises `UsageError` where the device has none."""
    dtype = DTYPES[name]
    if dtype == torch.float64 and not has_float64(device):
        raise UsageError(f"--dtype float64: {device.type} has no float64; add --device cpu")
    recipe.model.to(dtype)
    torch.set_default_dtype(torch.float64 if dtype == torch.float64 else torch.get_default_dtype())
    return dtype


def _whose_first_weights(content: Mapping[str, Any]) -> str:
    who = "build() gives" if content.get("script") is None else "the script begins with"
    return f"the weights that {who}"


def _indices_in(content: Mapping[str, Any]) -> list[int] | None:
    rows = content.get("indices")
    return [int(row) for row in rows] if isinstance(rows, list) else None


def _of_rows(indices: Sequence[int] | None, rows: Sequence[int]) -> list[int] | None:
    """The data set's indices of these rows of the batch, where they are known."""
    return [indices[row] for row in rows if row < len(indices)] if indices else None


def _other(batches: list[Any]) -> tuple[str, list[Any], RandomState | None] | None:
    return ("the first of the data that is another one", [batches[0]], None) if batches else None


def same(a: float, b: float) -> bool:
    """NaN is like NaN here."""
    return a == b or (math.isnan(a) and math.isnan(b))


def _told(replay: Replay) -> float:
    """What the run tells of a train_step with several losses: the one that it ended at, the first
    that is not finite; else the last."""
    if replay.bad_since is not None:
        return replay.losses[replay.bad_since - 1]
    return next((loss for loss in replay.losses if not math.isfinite(loss)), replay.losses[-1])


def _mean(replay: Replay) -> float:
    return sum(replay.losses) / len(replay.losses) if replay.losses else math.nan


def restore(recipe: Recipe, content: dict[str, Any]) -> None:
    """Puts the snapshot's weights and states into the recipe. Raises `UsageError`."""
    if isinstance(recipe.model, Several):
        recipe.model.name_as(content["model"])
    restore_into(recipe, content)
