"""`nanodoc replay`: a snapshot's step again, with changes, experiments and fixes of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.accelerator import device_before_import, device_of, has_float64
from nanodoc.config import Config, artifact_folder
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examine.non_finite import Examiner
from nanodoc.examine.traceback import describe_failure
from nanodoc.experiments.experiments import KEYS, Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Budget
from nanodoc.facts.evidence import Evidence, Trip
from nanodoc.facts.ops import Birth
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.measure.gradients import really_nonfinite
from nanodoc.pipeline.changes import cast, only, with_settings
from nanodoc.pipeline.common import build_watched, report_of, run_info
from nanodoc.progress import Progress
from nanodoc.recipe.loader import split_entrypoint
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.optimizers import copy_optimizer, rate_of
from nanodoc.replay.plain_values import like
from nanodoc.replay.rerun import Rerunner
from nanodoc.replay.rng import RandomKeeper, RandomState
from nanodoc.replay.snapshot import (
    differences,
    minimal,
    random_state,
    read_snapshot,
    restore_into,
    save,
)
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, copy_weights
from nanodoc.replay.traced_replay import Replay, Replayer
from nanodoc.replay.weight_history import PastStep
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report, VitalSigns
from nanodoc.tensors.nested import move_module, tensor_leaves
from nanodoc.trace.stop import stop_here

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_MOST_BATCHES = 3  # of the recipe's data, looked through for one that is not the snapshot's


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """What to change and what to do. `settings` are texts such as "optimizer.lr=1e-4"; `samples`
    rows of the batch; `minimal` where the smallest failing batch is written."""

    dtype: str | None = None
    settings: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    ops: bool = False
    experiment: str | None = None
    minimal: Path | None = None
    debug: bool = False


def replay_snapshot(
    path: Path,
    config: Config,
    entrypoint: str | None = None,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Re-runs the step a snapshot holds under the tracer and returns the diagnosis. Raises
    `UsageError`."""
    options, progress = options or ReplayOptions(), progress or Progress()
    _check(options)
    content = read_snapshot(path)
    named = entrypoint or _trusted_entrypoint(content)
    device = device_before_import(config.device)
    # the recipe is built as the run built it: what build() was given travels in the snapshot
    saved = _mapping(content, "config")
    config = replace(
        config,
        recipe=config.recipe or saved.get("recipe") or {},
        amp=config.amp or saved.get("amp"),
    )
    if options.dtype is not None:
        config = replace(config, amp="off")
    seed = config.seed if config.seed is not None else saved.get("seed")
    if isinstance(seed, int):
        seed_everything(seed)
    try:
        recipe, _ = build_watched(named, config)
    except UserCodeError as error:
        info = run_info(named, "replay", config, device, None, 1, 0, "not_run")
        return report_of(
            info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False
        )
    device = device_of(recipe.model, config.device)
    default = torch.get_default_dtype()
    try:
        return _replayed(recipe, device, content, path, named, config, options, progress)
    finally:
        torch.set_default_dtype(default)  # --dtype float64 changes it


def _replayed(
    recipe: Recipe,
    device: torch.device,
    content: dict[str, Any],
    path: Path,
    named: str,
    config: Config,
    options: ReplayOptions,
    progress: Progress,
) -> Report:
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    again = _Again(recipe, device, amp_dtype, content, options, progress, config)
    evidence = again.differential.examine(again.evidence())
    info = run_info(named, "replay", config, device, amp_dtype, 1, 1, evidence.reproduced)
    artifacts: dict[str, str | None] = {"snapshot": str(path)}
    report = report_of(info, evidence, config, again.vitals, artifacts, [], False)
    findings = again.differential.treat(report.findings)
    tried, notes = again.extras(artifacts)
    differ = (
        [("bitwise reproduction", "; ".join(found))]
        if (found := differences(content, str(device)))
        else []
    )
    report = replace(
        report,
        findings=findings,
        tried=tried,
        ops=again.ops(),
        artifacts=artifacts,
        interrupted=again.differential.interrupted,
        not_checked=(*differ, *notes, *again.differential.notes),
    )
    if options.debug:
        again.debug(evidence.births)
    return write_patch(report, artifact_folder(config)) if config.fix else report


class _Again:
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
        drawn = _drawn(recipe)
        template = drawn[0] if drawn else None
        restore_into(recipe, content)
        move_module(recipe.model, device, recipe.optimizers)
        recipe = with_settings(recipe, options.settings)
        batches = _batches(content, template)
        others = [one for one in drawn if not _same(one, batches)]
        saved_batches = batches
        dtype = DTYPES[options.dtype] if options.dtype is not None else None
        if dtype == torch.float64 and not has_float64(device):
            raise UsageError(f"--dtype float64: {device.type} has no float64; add --device cpu")
        if dtype is not None:
            recipe.model.to(dtype)
            torch.set_default_dtype(
                torch.float64 if dtype == torch.float64 else torch.get_default_dtype()
            )
            batches, others = (
                [cast(batch, dtype) for batch in batches],
                [cast(one, dtype) for one in others],
            )
        self.runner = StepRunner(recipe, device, amp_dtype)
        self.keeper = StateKeeper(recipe, device)
        capsule = self.keeper.take(step, batches)
        capsule.rng = _restorable(random_state(content), device) or capsule.rng
        self._whole = replace(capsule, batches=saved_batches)
        self.capsule = only(capsule, options.samples)
        self.replayer = Replayer(self.runner, self.keeper)
        self.examiner = Examiner(self.replayer)
        self.first = self.replayer.replay_and_rewind(self.capsule)
        earlier = [replace(capsule, step=0, weights=fresh)] if step else []
        elsewhere = Elsewhere(
            other=lambda: _other(others), earlier=earlier, first="the weights that build() gives"
        )
        rows = content.get("indices")
        indices = [int(row) for row in rows] if isinstance(rows, list) else None
        self._all_indices = indices
        self._indices = (
            [indices[row] for row in options.samples if row < len(indices)]
            if indices and options.samples
            else indices
        )
        self.differential = ExperimentRun(
            self.runner,
            self.keeper,
            self.replayer,
            Step(self.capsule, elsewhere, half=amp_dtype == torch.float16, indices=self._indices),
            Budget(config.budget),
            progress.say,
            only=options.experiment,
        )
        self.loss = _mean(self.first)
        self.vitals = VitalSigns(steps=1, losses=(self.loss,), grad_norms=(self.first.grad_norm,))

    def evidence(self) -> Evidence:
        """What the step shows when it is run again."""
        recipe, first, capsule = self.runner.recipe, self.first, self.capsule
        known = _mapping(self._content, "run")
        changed = bool(self._options.samples or self._options.settings or self._options.dtype)
        named = list(recipe.model.named_parameters())
        sick_now = [name for name, p in named if not bool(torch.isfinite(p).all())]
        failure = describe_failure(first.error) if first.error else None
        unhealthy = (
            bool(first.bad_parameters) or not math.isfinite(self.loss) or failure is not None
        )
        told = (
            None
            if failure is not None
            else self.loss
            if changed
            else float(known.get("loss", self.loss))
        )
        norm = None if changed else known.get("grad_norm")
        examined = self.examiner.examine(capsule, told, norm, self._indices) if unhealthy else None
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
            births=examined.births if examined else (),
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
        if changed or "loss" not in known:
            return "not_run"
        return (
            "bitwise"
            if self.loss == known["loss"] and self.first.grad_norm == known.get("grad_norm")
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
            one = self.differential.experiments.one(options.experiment)
            rows += [one.row()] if one is not None else []
            notes += (
                []
                if one is not None
                else [(options.experiment, "there is nothing here that it would change")]
            )
        if options.settings:
            rows.append(self._updated())
        if options.minimal is not None:
            found = self.differential.guilty_samples()
            if found is None:
                notes.append(
                    (
                        "--minimise",
                        "no smaller batch was found that fails alone while the other samples pass",
                    )
                )
            else:
                chosen = [options.samples[row] if options.samples else row for row in found]
                # of the snapshot's own batch: --dtype has changed this one
                smallest = only(self._whole, chosen)
                indices = (
                    [self._all_indices[row] for row in chosen if row < len(self._all_indices)]
                    if self._all_indices
                    else None
                )
                try:
                    save(minimal(self._content, smallest.batches, indices), options.minimal)
                except OSError as error:
                    raise UsageError(
                        f"cannot write the minimal snapshot to {options.minimal}: {error}"
                    ) from error
                artifacts["minimal"] = str(options.minimal)
                named = ", ".join(map(str, chosen))
                rows.append(
                    {
                        "name": f"samples {named} alone",
                        "outcome": "fails",
                        "loss": None,
                        "seconds": None,
                    }
                )
        return tuple(rows), notes

    def _updated(self) -> Mapping[str, Any]:
        """The optimizer's step with the new settings, and the same batch once more."""
        named = list(self.runner.recipe.model.named_parameters())
        start = replace(
            self.capsule,
            weights=copy_weights(named),
            optimizers=[copy_optimizer(one) for one in self.runner.recipe.optimizers],
        )
        rates: list[list[float | torch.Tensor | None]] = [
            [rate_of(group) for group in o.param_groups] for o in self.runner.recipe.optimizers
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

    def ops(self) -> tuple[Any, ...]:
        return self.examiner.ops_of_slice(self.capsule) if self._options.ops else ()

    def debug(self, births: Sequence[Birth]) -> None:
        """Opens the debugger at the first birth."""
        if not births:
            raise UsageError(
                "--pdb: the step makes nothing non-finite here, there is nowhere to stop"
            )
        birth = births[0]
        self.examiner.stop_at_birth(
            self.capsule, birth, lambda: stop_here(f"{birth.site.op} has run")
        )


def _check(options: ReplayOptions) -> None:
    """Refuses what can't be done before anything runs."""
    if options.experiment is not None and options.experiment not in KEYS:
        raise UsageError(f"no experiment {options.experiment!r}; there are " + ", ".join(KEYS))
    if options.dtype is not None and options.dtype not in DTYPES:
        raise UsageError(f"--dtype {options.dtype!r} is none of " + ", ".join(DTYPES))
    if options.minimal is not None and options.minimal.exists():
        raise UsageError(f"{options.minimal} exists already; name another file with --output")


def _drawn(recipe: Recipe) -> list[Any]:
    """The first batches of the recipe's own data, as many as it yields."""
    found: list[Any] = []
    try:
        for batch in recipe.data:
            found.append(batch)
            if len(found) == _MOST_BATCHES:
                break
    except Exception:
        # the data is the user's; without it only the containers' types and the other batch are
        # missing
        pass
    return found


def _other(batches: list[Any]) -> tuple[str, list[Any], RandomState | None] | None:
    return ("the first of the data that is another one", [batches[0]], None) if batches else None


def _same(batch: Any, batches: list[Any]) -> bool:
    """The batch is one of the snapshot's."""
    own = [tensor for _, tensor in tensor_leaves(batch)]
    for one in batches:
        theirs = [tensor for _, tensor in tensor_leaves(one)]
        if len(own) == len(theirs) and all(
            a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(own, theirs, strict=True)
        ):
            return True
    return False


def _batches(content: dict[str, Any], template: Any) -> list[Any]:
    """The snapshot's batches in the containers the recipe's own data uses."""
    if "batches" not in content:
        return [(content["x"], content["y"]) if "y" in content else content["x"]]
    return [like(batch, template) for batch in content["batches"]]


def _restorable(rng: RandomState | None, device: torch.device) -> RandomState | None:
    """The snapshot's random states. Raises `UsageError` for ones that no generator takes."""
    if rng is None:
        return None
    before = RandomKeeper(device).take()
    try:
        rng.restore(device)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UsageError(
            f"the snapshot's random states are of no use: {str(error).splitlines()[0][:100]}"
        ) from error
    finally:
        before.restore(device)
    return rng


def _mean(replay: Replay) -> float:
    return sum(replay.losses) / len(replay.losses) if replay.losses else math.nan


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _trusted_entrypoint(content: dict[str, Any]) -> str:
    """The entrypoint a snapshot names, if it lies below the working folder: a stranger's file must
    not pick what runs."""
    named = content.get("entrypoint")
    if not isinstance(named, str):
        raise UsageError(
            "this snapshot names no entrypoint; give one with --entrypoint FILE.py:NAME"
        )
    path, _ = split_entrypoint(named)
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise UsageError(
            f"the snapshot wants to run {named}, which is outside this folder; allow it with "
            f"--entrypoint {named}"
        )
    if not path.exists():
        raise UsageError(
            f"the snapshot's recipe {named} is not here; say where it is with --entrypoint "
            "FILE.py:NAME"
        )
    return named
