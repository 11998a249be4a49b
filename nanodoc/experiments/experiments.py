"""The experiments on one step: each runs it again with one thing changed. The cheapest and most
telling come first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanodoc import accelerator
from nanodoc.errors import UsageError
from nanodoc.experiments import precision
from nanodoc.experiments.call_site import Applied
from nanodoc.experiments.trial import Say, StepTrials, Trial
from nanodoc.facts.trials import FAILS, PASSES, Experiment
from nanodoc.instrument.torch_private import BatchNormBase, DropoutBase
from nanodoc.replay.rng import RandomState
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.host_memory import free_memory

_SHARE_OF_MEMORY = 0.25
_ACTIVE_IN_TRAINING = (DropoutBase, BatchNormBase)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the run knows besides the step itself."""

    other: Callable[[], tuple[str, list[Any], RandomState | None] | None] = lambda: None
    """Another good batch: what to call it, its (micro-)batches, and the random state it ran
    with."""
    earlier: Sequence[StepState] = ()
    """Checkpoints of earlier steps, the latest first."""
    why_none: str = ""
    """Why there are no checkpoints."""
    first: str = "the weights of step 0"
    """What the earliest of them is."""


_OUT_OF_TIME = "the time limit is reached (--budget)"


class NotRun(Exception):
    """An experiment that can't be made here; says why."""


class Experiments:
    """All experiments on one step."""

    def __init__(
        self,
        trials: StepTrials,
        capsule: StepState,
        elsewhere: Elsewhere,
        *,
        half: bool,
        say: Say,
    ) -> None:
        self._trials = trials
        self._capsule = capsule
        self._elsewhere = elsewhere
        self._half = half
        self._say = say
        self.baseline: Trial | None = None
        self._makers: Mapping[str, Callable[[], tuple[str, Trial]]] = {
            "same-again": self._same_again,
            "other-batch": self._other_batch,
            "first-weights": self._first_weights,
            "good-weights": self._good_weights,
            "autocast-off": self._autocast_off,
            "bfloat16": self._bfloat16,
            "float64": self._float64,
            "eval-mode": self._eval_mode,
            "cpu": self._cpu,
        }

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def same(self) -> Trial:
        """The step as it was."""
        if self.baseline is None:
            self.baseline = self._trials.outcome(self._capsule)
            self._trials.raises = self.baseline.error.partition(":")[0]
        return self.baseline

    def one(self, key: str) -> Experiment | None:
        """The outcome of one experiment; None where it has nothing to change (no autocast, no
        dropout). Raises `UsageError` for a key that names none."""
        if key not in self._makers:
            raise UsageError(f"no experiment {key!r}; choose one of " + ", ".join(self._makers))
        self._say(f"trying {_NAMES[key]} …")
        try:
            if key in self._pointless():
                return None
            trials, name = self._trials, _NAMES[key]
            if key != "same-again" and not trials.place.allows(trials.seconds, name):
                raise NotRun(_OUT_OF_TIME)
            make = self._makers[key]
            made = make() if key == "same-again" else trials.in_time(make, None, name)
            if made is None:
                raise NotRun(_OUT_OF_TIME)
            name, trial = made
        except NotRun as reason:
            return Experiment(key=key, name=_NAMES[key], outcome=f"not run: {reason}")
        if not trial.applied:
            return Experiment(
                key=key,
                name=name,
                outcome=f"not run: {trial.error}"
                if trial.error
                else "not run: it would change nothing here",
            )
        outcome = PASSES if trial.healthy else FAILS
        return Experiment(
            key=key, name=name, outcome=outcome, loss=trial.loss, seconds=round(trial.seconds, 4)
        )

    def moved_outside(self) -> bool:
        """A batch that passed in the run, and fails now, fails with the weights of step 0 as well:
        something else has changed since."""
        found = self._elsewhere.other()
        earliest = min(self._elsewhere.earlier, key=lambda state: state.step, default=None)
        if found is None or found[2] is None or earliest is None or earliest.step:
            return False  # it was not run, or there are no such weights
        capsule = replace(self._capsule, batches=found[1], rng=found[2])
        trial = self._trials.in_time(lambda: self._with_weights(earliest, capsule), None)
        return trial is not None and trial.applied and not trial.healthy

    # -- the experiments ---------------------------------------------------------------------------

    def _same_again(self) -> tuple[str, Trial]:
        return _NAMES["same-again"], self.same()

    def _other_batch(self) -> tuple[str, Trial]:
        found = self._elsewhere.other()
        if found is None:
            raise NotRun("nanodoc has no other batch")
        what, batches, rng = found
        return f"another batch ({what})", self._trials.outcome(
            replace(self._capsule, batches=batches, rng=rng or self._capsule.rng)
        )

    def _first_weights(self) -> tuple[str, Trial]:
        earliest = min(self._elsewhere.earlier, key=lambda state: state.step, default=None)
        if earliest is None or earliest.step:
            raise NotRun(self._elsewhere.why_none or "no checkpoint of step 0 was kept")
        return self._elsewhere.first, self._with_weights(earliest)

    def _good_weights(self) -> tuple[str, Trial]:
        latest = self._elsewhere.earlier[0]
        return f"the weights of the last good checkpoint (step {latest.step})", self._with_weights(
            latest
        )

    def _with_weights(self, checkpoint: StepState, capsule: StepState | None = None) -> Trial:
        return self._trials.outcome(
            replace(
                capsule or self._capsule,
                weights=checkpoint.weights,
                buffers=checkpoint.buffers,
                optimizers=checkpoint.optimizers,
            )
        )

    def _autocast_off(self) -> tuple[str, Trial]:
        applied = Applied()
        return _NAMES["autocast-off"], self._trials.outcome(
            self._capsule, precision.autocast_in(None, applied), applied
        )

    def _bfloat16(self) -> tuple[str, Trial]:
        applied = Applied()
        return _NAMES["bfloat16"], self._trials.outcome(
            self._capsule, precision.autocast_in(torch.bfloat16, applied), applied
        )

    def _float64(self) -> tuple[str, Trial]:
        runner = self._trials.runner
        if not accelerator.has_float64(runner.device):
            raise NotRun(f"{runner.device.type} has no float64")
        needed, free = precision.bytes_in_float64(runner, self._capsule), free_memory(runner.device)
        if free is not None and needed > _SHARE_OF_MEMORY * free:
            raise NotRun(
                f"it needs {needed / 2**30:.1f} GiB, which is more than a quarter of the free "
                "memory"
            )
        with self._changed(precision.double) as capsule:
            return _NAMES["float64"], self._trials.outcome(
                capsule, precision.autocast_in(None, Applied())
            )

    def _pointless(self) -> set[str]:
        """Experiments that would change nothing here."""
        earlier, runner = self._elsewhere.earlier, self._trials.runner
        pointless = {
            "first-weights": not self._capsule.step and all(state.step for state in earlier),
            "good-weights": not earlier or not earlier[0].step,
            "autocast-off": not self._half,
            "bfloat16": not self._half,
            "eval-mode": not any(map(_behaves_otherwise, runner.recipe.model.modules())),
            "cpu": runner.device.type == "cpu",
        }
        return {key for key, changes_nothing in pointless.items() if changes_nothing}

    def _eval_mode(self) -> tuple[str, Trial]:
        modules = list(self._trials.runner.recipe.model.modules())
        return _NAMES["eval-mode"], self._trials.outcome(
            replace(self._capsule, training=[False] * len(modules))
        )

    def _cpu(self) -> tuple[str, Trial]:
        runner = self._trials.runner
        if runner.spread:
            raise NotRun("the code places the model on several devices by name")
        recipe, device = runner.recipe, runner.device
        with self._changed(lambda tensor: tensor.to("cpu")) as capsule:
            runner.device, runner.recipe = torch.device("cpu"), replace(recipe, scaler=None)
            try:
                return _NAMES["cpu"], self._trials.outcome(capsule)
            finally:
                runner.device, runner.recipe = device, recipe

    @contextlib.contextmanager
    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[StepState]:
        with contextlib.ExitStack() as stack:
            try:
                capsule = stack.enter_context(
                    precision.converted(self._trials.runner, self._capsule, change)
                )
            except RuntimeError as error:  # weights that can't be exchanged, or no memory for them
                raise NotRun(str(error).splitlines()[0][:100]) from error
            yield capsule


def _behaves_otherwise(module: torch.nn.Module) -> bool:
    """In training mode, as it is now: dropout that drops, batch norm."""
    active = isinstance(module, _ACTIVE_IN_TRAINING) and module.training
    return active and bool(float(getattr(module, "p", True)))


_NAMES = {
    "same-again": "same again",
    "other-batch": "another batch",
    "first-weights": "the weights of step 0",
    "good-weights": "the weights of the last good checkpoint",
    "autocast-off": "float32 (autocast off)",
    "bfloat16": "bfloat16",
    "float64": "float64",
    "eval-mode": "eval mode (no dropout, BatchNorm's running statistics)",
    "cpu": "on the CPU",
}
KEYS = tuple(_NAMES)
