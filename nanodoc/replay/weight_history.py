"""Weights of earlier steps and the batches since, in host memory: what it takes to ask when the
weights went wrong.

Three are kept at most: the start of the run, the last good one and the one before it. Good means
that the loss had not grown by then. The copies cost about a hundredth of the run's time, never more
than a fiftieth, and never more than a quarter of the free host memory.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from nanodoc.measure.gradients import nonfinite_tensors
from nanodoc.replay.closure_state import NetworksBeside
from nanodoc.replay.optimizers import copy_optimizer, state_bytes
from nanodoc.replay.past_batches import PastBatches
from nanodoc.replay.past_step import (
    KnownMemory,
    PastStep,
    past_of,
    past_of_brief,
)
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import BriefStep, StateKeeper, StepState, copy_weights
from nanodoc.tensors.host_memory import free_host_memory
from nanodoc.tensors.plain import without_values

_SHARE_OF_TIME = 0.005  # and the bookkeeping stays below as much again
_SHARE_OF_MEMORY = 0.25
_KEPT = 3
_FEWEST = 8
"""Steps. Where no more of them fit into memory, none is watched by its loss alone: a copy of the
weights for so few costs what it saves."""
_AGAIN = 5.0  # seconds of steps that brief ones may have to be run again with
_AT_MOST = 10.0  # seconds, where a copy is so dear that it has to wait
_SOON = 0.5  # seconds, which take as long to run again: a newer copy would save little
_PAUSE = 3.0  # times a usual step: what a longer one takes more is not the step's own
_NEW = 0.1  # of each step, in the mean that follows them
_SHARE_OF_BRIEF = 0.01  # of the time, for copies that keep these few
_DEAREST = 0.02  # of the time, for copies that would have to wait longer than `_AT_MOST`
_BEGINNING = 10
"""Steps that tell how large the loss is; then those before the last power of two times as many."""
_GREW = 3.0
"""A loss that drifts by the same amount each step is at most twice what it was halfway."""


class WeightHistory:
    """Told of every step before it runs and after; holds what experiments on the run's past
    need."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        *,
        every: int | None = None,
        enabled: bool = True,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._every = every
        self._named = list(runner.recipe.model.named_parameters())
        self._parameters = [p for _, p in self._named]
        of_script = getattr(runner.recipe.train_step, "of_script", False)
        self._networks = NetworksBeside(runner.recipe) if of_script else None
        """What a script's iterations move behind their last optimizer step."""
        self._usual = self._largest = 0.0
        self._noted, self._next_look = 0, _BEGINNING
        self.growing = False
        """The last loss was far above those of the first half of the training."""
        self._elapsed = 0.0
        self._spent = 0.0
        self._cost = 0.0
        self._since = 0.0  # seconds of the steps since the last copy
        self._kept_at = 0  # the step of that copy
        self._wanted = self._only_first = False  # there is room for one copy
        self._briefly: int | None = None
        self.cleared = True
        """No gradient was left when the last step began that was watched in full."""
        self.found_sick = False
        """Weights that were to be kept were not finite."""
        self._memory: float | None = None  # bytes that may be taken
        self._step_seconds = 0.0  # of the last steps, a moving mean
        self.enabled = enabled
        self.note = "" if enabled else "switched off (--no-checkpoints)"
        """Why there are none, or fewer than asked for."""
        self.first: StepState | None = None
        self.good: StepState | None = None
        self.previous: StepState | None = None
        self.batches = PastBatches(lambda: self._budget() / 2)
        self.past = self.batches.steps

    def before_step(self, capsule: StepState, indices: Sequence[int] | None = None) -> float:
        """Keeps the step's batches, and at times its weights. `indices`: those of its samples in
        the data set. Returns the seconds it took. Nothing raised here may end a healthy run."""
        if not self.enabled:
            return 0.0
        began = time.perf_counter()
        with self._guarded():
            past = past_of(capsule, self.optimizers, indices)
            self.cleared = past.cleared
            self.batches.add(past, KnownMemory())
            if self._due(capsule.step):
                self._take(capsule)
        return time.perf_counter() - began

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            self.enabled = False
            self.note = (
                f"the start of a step could not be copied: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:100]}"
            )

    def after_step(
        self, loss: float, seconds: float, rates: Mapping[int, list[float | None]]
    ) -> None:
        """A step that went well took `seconds`; `rates` as `Observer.rates`."""
        if self.past:
            self.past[-1].used.update(rates)
        self._note(loss, seconds)

    def _note(self, loss: float, seconds: float) -> None:
        self._elapsed += seconds
        # a pause behind its optimizer step, as for a validation, is not run again
        known = self._step_seconds or seconds
        usual = min(seconds, _PAUSE * known)
        self._step_seconds = known + _NEW * (usual - known)
        self._since += usual
        size = abs(loss)
        self._noted += 1
        if self._noted == 1:
            self._usual = size
        elif self._noted == self._next_look:
            # the first few say how large a loss is that begins at 0, or as a difference of terms
            if self._noted == _BEGINNING or not self.growing:
                self._usual = self._largest
            self._next_look *= 2
        self.growing = not math.isfinite(loss) or size > _GREW * self._usual + 1e-6
        self._largest = max(self._largest, size if math.isfinite(loss) else 0.0)

    def brief_steps(self, steps: Sequence[BriefStep]) -> None:
        """Keeps the batches of steps that were watched by their losses alone."""
        if not self.enabled:
            return
        with self._guarded():
            before, known = None, KnownMemory()
            for step in steps:
                past = past_of_brief(step, before)
                before = step, past
                self.batches.add(past, known)
                self._briefly = step.step
        for step in steps:
            if step.loss is not None:
                self._note(step.loss, step.seconds)

    def abandon(self, step: int) -> None:
        """The step that began last was none."""
        self.batches.drop_last(step)

    def keep_next(self) -> None:
        """The weights that the next step begins with are to be kept."""
        self._wanted = not self._only_first

    @property
    def anchor(self) -> StepState | None:
        """The latest weights that are known to be finite."""
        return self.good or self.first

    @property
    def reaches_back(self) -> bool:
        """Every step since the latest weights that are kept can be run again from them, in a few
        seconds at most."""
        anchor, past = self.anchor, self.past
        return (
            self.enabled
            and anchor is not None
            and self._since <= self._reach
            and len(past) > 0
            and past[0].step <= anchor.step
        )

    @property
    def _reach(self) -> float:
        """Seconds of steps that may have to be run again: until a further copy is due."""
        return min(max(_AGAIN, self._cost / _SHARE_OF_BRIEF), _AT_MOST)

    def make_room(self, wanted: int) -> int:
        """How many of so many further steps can be run again from the latest weights that are kept,
        and with them the one that follows; older batches are dropped for theirs."""
        room = min(wanted, self._room())
        if room > 0:
            self.batches.make_room(room + 1)
        return room

    @property
    def holds_enough(self) -> bool:
        """So many batches fit that steps may be watched by their losses alone."""
        return self.batches.fitting() >= _FEWEST

    def _room(self) -> int:
        fitting = self.batches.fitting()
        if fitting < _FEWEST:
            return 0
        in_time = math.ceil((self._reach - self._since) / max(self._step_seconds, 1e-6))
        return min(fitting - 1 - self.since_anchor, in_time)

    @property
    def since_anchor(self) -> int:
        """Steps since the latest weights that are kept."""
        anchor, past = self.anchor, self.past
        return past[-1].step - anchor.step + 1 if past and anchor is not None else 0

    @property
    def briefly(self) -> bool:
        """Some steps since the latest weights that are kept were watched by their losses alone."""
        anchor = self.anchor
        return self._briefly is not None and anchor is not None and self._briefly >= anchor.step

    def forget(self, why: str) -> None:
        """What is past can't be run again any more."""
        self.enabled, self.note = False, why
        self.first = self.good = self.previous = None
        self.batches.clear()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those of the recipe."""
        return self._runner.recipe.optimizers

    def before(self, step: int) -> list[StepState]:
        """The checkpoints of earlier steps, the latest first."""
        found = [
            state
            for state in (self.good, self.previous, self.first)
            if state is not None and state.step < step
        ]
        return list({state.step: state for state in found}.values())

    def steps_between(self, first: int, last: int) -> list[PastStep] | None:
        """The steps from `first` to `last`, both included; None where some of their batches are
        gone."""
        steps = [state for state in self.past if first <= state.step <= last]
        whole = len(steps) == last - first + 1
        return steps if whole and all(step.intact for step in steps) else None

    def stretch(self, most: int) -> tuple[StepState, list[PastStep]] | None:
        """The earliest checkpoint whose steps can still be run again, and at most so many of
        these; None where there is none."""
        kept = (self.good, self.previous, self.first)
        starts = {state.step: state for state in kept if state is not None}
        for number in sorted(starts):
            there = itertools.takewhile(
                lambda past: past.intact, (past for past in self.past if past.step >= number)
            )
            steps = list(itertools.islice(there, most))
            if steps and steps[0].step == number:
                return starts[number], steps
        return None

    def good_before(self, step: int, losses: Sequence[float]) -> PastStep | None:
        """The last step before `step` whose loss was finite, and whose batch is as it was."""
        return next(
            (
                past
                for past in reversed(self.past)
                if past.step < step and past.intact and math.isfinite(losses[past.step])
            ),
            None,
        )

    # -- keeping -----------------------------------------------------------------------------------

    def _budget(self) -> float:
        if self._memory is None:
            free = free_host_memory()
            self._memory = math.inf if free is None else _SHARE_OF_MEMORY * free
        return self._memory

    def _due(self, step: int) -> bool:
        if self.first is None:
            return not any(without_values(p) for p in self._parameters)
        if self.growing:
            return False
        if self._wanted:
            return True
        if self._every is not None:
            return step % self._every == 0
        share = _SHARE_OF_TIME
        if self.briefly and self.holds_enough:
            if not self.reaches_back or self._room() <= 0:
                share = _DEAREST
            elif self._since < _SOON and step - self._kept_at < len(self.past) // 2:
                return False
        return self._spent + self._cost <= share * self._elapsed

    def _take(self, capsule: StepState) -> None:
        self._wanted = False
        kept = self._copies_that_fit()
        if not kept:
            self.enabled = self.first is not None
            return
        self._only_first = kept == 1
        if self.first is not None and self._only_first:
            return
        began = time.perf_counter()
        if self.briefly and nonfinite_tensors(self._named):
            self.found_sick = True
            return
        taken = replace(
            self._keeper.take(capsule.step, capsule.batches, apart=True),
            grads=capsule.grads,
            weights=copy_weights(self._named, host=True),
            optimizers=[copy_optimizer(o, host=True) for o in self._runner.recipe.optimizers],
            networks=None if self._networks is None else self._networks.kept(),
        )
        self._since, self._kept_at = 0.0, capsule.step
        if self.first is None:
            self.first = taken
        else:
            self.previous, self.good = self.good if kept == _KEPT else None, taken
        self._cost = time.perf_counter() - began
        self._spent += self._cost

    def _copies_that_fit(self) -> int:
        """How many copies the memory allows."""
        needed = sum(p.numel() * p.element_size() for p in self._parameters)
        needed += sum(map(state_bytes, self.optimizers))
        needed += self._networks.bytes if self._networks is not None else 0
        fitting = min(_KEPT, int(min(self._budget() / 2 / max(needed, 1), _KEPT)))
        if fitting < _KEPT:
            self.note = (
                f"an eighth of the free memory holds {fitting} of {_KEPT} copies of weights and "
                f"optimizer states ({needed / 2**20:.0f} MiB each)"
            )
        return fitting
