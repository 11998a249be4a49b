"""What a run watches about learning itself: its rates, its data, its warnings, its loop's conduct,
and, when it is over, what the last steps call and which units are dead."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nanodoc.examination.last_batches import Inspector
from nanodoc.examination.last_steps import LastSteps
from nanodoc.examination.raised_rate import gone_at, raised_at
from nanodoc.examination.rounding import half_weights, rounded_updates
from nanodoc.facts.course import update_by_hand
from nanodoc.facts.inspection import InspectionFacts
from nanodoc.facts.loop import (
    CARRIED,
    NEVER_DIFFERENTIATED,
    NEVER_STEPPED,
    CreepingFacts,
    DataFacts,
    LoopFacts,
    LoopMisuse,
    ModeChange,
    RoundingFacts,
    RunStatistics,
    SchedulerFacts,
    StoppedFacts,
)
from nanodoc.facts.rates import warmup_length
from nanodoc.facts.source import SourceSpan
from nanodoc.looks.scheduler import Look, Place, Stage
from nanodoc.measure.data import data_facts
from nanodoc.measure.gradients import Vitals, values_of
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.variables import code_of
from nanodoc.replay.closure_state import reachable
from nanodoc.replay.optimizers import given_rates, rate_of
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import BriefStep, StateKeeper, StepState
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.trace.bindings import named_without_call
from nanodoc.trace.named_numbers import warmup_at
from nanodoc.trace.returned import lines_stepping
from nanodoc.trace.spans import resolved
from nanodoc.watchers.ledger import Ledger, weights_grew, writer_of
from nanodoc.watchers.loop_protocol import LoopProtocol
from nanodoc.watchers.other_schedules import other_schedules
from nanodoc.watchers.pace import creeping, stopped
from nanodoc.watchers.sampling import Sampler
from nanodoc.watchers.statistics import course_stats, peak_memory
from nanodoc.watchers.warnings import WarningWatch
from nanodoc.watchers.watch import NOTHING, RunEnd, Watch

_MOST_LAYERS = 512
_KEPT_NORMS = 256
"""Steps whose gradient norms are kept by parameter; when there are twice as many, every other one
goes."""


class LearningWatch(Watch):
    """One run's watch. The engine tells it of every step; the facts are complete when `at_end` has
    run."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        build: BuildFacts,
        conduct: LoopProtocol,
        checkpoints: WeightHistory,
        sampler: Sampler,
    ) -> None:
        super().__init__()
        self.sampler = sampler
        self._runner = runner
        self._keeper = keeper
        self._recipe = runner.recipe
        self._build = build
        self._loop_protocol = conduct
        self._checkpoints = checkpoints
        self._inspector = Inspector(runner, keeper, build)
        self.warnings = WarningWatch()
        self._ledger = Ledger(runner.recipe.model)
        self._rates: list[tuple[float, ...]] = []
        self._norms: list[tuple[int, Vitals]] = []
        self._every = 1
        self._begun = False
        self._training: list[tuple[int, bool]] = []
        self.waits: list[float] = []
        """Seconds after which each batch came."""
        self._told: Any = None
        self.inspection: InspectionFacts | None = None
        self.data: DataFacts | None = None
        self._rounding: RoundingFacts | None = None
        self.update_site: SourceSpan | None = None
        self.stats: RunStatistics | None = None

    def around_run(self) -> contextlib.AbstractContextManager[None]:
        return self.warnings.watching()

    def before_step(self, start: StepState) -> float:
        self.warnings.step = start.step
        rates = [rate_of(group) for o in self._recipe.optimizers for group in o.param_groups]
        # some optimizers have none
        self._rates.append(
            tuple(rate for rate in rates if rate is not None) if None not in rates else ()
        )
        training = self._recipe.model.training
        if not self._training or self._training[-1][1] != training:
            self._training.append((start.step, training))
        return 0.0

    def brief_steps(self, steps: Sequence[BriefStep]) -> None:
        """Steps that were watched by their losses alone."""
        groups: object = None
        told: tuple[float, ...] = ()
        for step in steps:
            if step.groups is not groups:
                groups = step.groups
                rates = [rate_of(group) for own in step.groups for group in own]
                # some optimizers have none
                told = tuple(rate for rate in rates if rate is not None)
                told = told if len(told) == len(rates) else ()
            self._rates.append(told)
            self.sampler.elapsed(step.seconds)
            if self._training[-1][1] != step.training:
                self._training.append((step.step, step.training))

    def around_step(self, start: StepState) -> contextlib.AbstractContextManager[None]:
        if self._begun:
            return NOTHING
        self._begun = True
        if self.sampler.may_hook:
            return self._inspector.first_step()
        self._inspector.note_networks([self._recipe.model, *reachable(self._recipe)])
        return NOTHING

    @property
    def highest_rates(self) -> list[float]:
        """The highest learning rate of each step so far."""
        return [max(rates, default=0.0) for rates in self._rates]

    @property
    def load_seconds(self) -> float:
        """Seconds that the run waited for data so far."""
        return sum(self.waits)

    def line(self) -> dict[str, Any]:
        found: dict[str, Any] = {"load_seconds": self.waits[-1] if self.waits else 0.0}
        rates = self._rates[-1] if self._rates else ()
        if len(rates) > 1:
            found["learning_rates"] = list(rates)
        if self._runner.device.type != "cpu":
            found["peak_memory"] = peak_memory(self._runner.device)
        # of the sampled step before this one
        if self.sampler.latest is not None and self.sampler.latest is not self._told:
            self._told = latest = self.sampler.latest
            found["sampled"] = {
                "step": latest.step,
                "update_ratios": list(latest.group_ratios),
                "layers": {
                    layer.module: [layer.mean, layer.std, layer.zeros] for layer in latest.layers
                },
                "parameters": {
                    module: list(row)
                    for module, row in islice(latest.by_layer().items(), _MOST_LAYERS)
                },
            }
        return found

    def after_step(self, start: StepState, vitals: Vitals, seconds: float) -> None:
        self._ledger.note(start.step)
        if start.step % self._every:
            return
        self._norms.append((start.step, vitals))
        if len(self._norms) >= 2 * _KEPT_NORMS:
            self._norms, self._every = self._norms[::2], 2 * self._every

    # -- when the run is over ----------------------------------------------------------------------

    def at_end(self, end: RunEnd) -> None:
        last = end.last
        self._loop_protocol.forget()
        self._measure_data(end)
        seen = None
        if last is not None:
            past = [] if self._writes_files() else list(self._checkpoints.past)
            first = self._checkpoints.first
            seen = LastSteps(self._inspector, self._recipe, self._build, last, past, first)
            seen.register(end.looks, lambda: end.whole)
            end.looks.add(
                Look(
                    name="rounded updates",
                    group="weights and layers over the steps",
                    stage=Stage.CLOSER,
                    likely=0.5,  # most trainings with such weights round most updates away
                    runs=2,
                    asks=lambda: end.whole and self._has_half_weights(),
                    work=lambda place: self._round(last),
                )
            )
            end.looks.add(
                Look(
                    name="what ran away",
                    group="weights and layers over the steps",
                    stage=Stage.SUMMARY,
                    likely=0.01,  # after the statistics, which say whether anything has
                    asks=lambda: end.whole and self.stats is not None and bool(self.stats.grown),
                    work=lambda place: self._find_writer(last),
                )
            )
        end.looks.add(
            Look(
                name="statistics over the run",
                group="weights and layers over the steps",
                stage=Stage.SUMMARY,
                due=True,  # they were measured while the run went on
                runs=0,
                work=lambda place: self._sum_up(seen, place),
            )
        )

    def _find_writer(self, last: StepState) -> None:
        """The line of the last step that writes what grew most."""
        first, stats = self._checkpoints.first, self.stats
        if first is None or stats is None or self._writes_files():
            return
        most, *others = stats.grown
        writer = writer_of(self._recipe.model, first, most.name)
        if writer is not None:
            self._inspector.look(last, writer)
            self.stats = replace(stats, grown=(replace(most, at=writer.found), *others))

    def _has_half_weights(self) -> bool:
        groups = [group for o in self._recipe.optimizers for group in o.param_groups]
        return bool(half_weights(groups))

    def _round(self, last: StepState) -> None:
        if self._writes_files():
            return
        steps = sorted((rates for rates in self._rates if rates), key=max)
        usual = steps[len(steps) // 2] if steps else ()
        self._rounding = rounded_updates(self._runner, self._keeper, self._build, last, usual)

    def _measure_data(self, end: RunEnd) -> None:
        last = end.last
        past = list(self._checkpoints.past)
        batches = [
            state.batches[0] if len(state.batches) == 1 else state.batches
            for state in past
            if state.intact
        ]
        if not batches and last is not None:
            batches = [last.batches[0] if len(last.batches) == 1 else last.batches]
        # whatever is odd about a batch
        with contextlib.suppress(
            RuntimeError, ValueError, TypeError, IndexError, NotImplementedError
        ):
            self.data = data_facts(
                batches,
                loader=loader_of(self._recipe.data) is not None,
                per_pass=per_pass(self._recipe.data),
                waits=self.waits,
                step_seconds=end.step_seconds,
                steps=end.steps,
            )

    def _sum_up(self, seen: LastSteps | None, place: Place) -> None:
        if seen is not None:
            self.inspection = seen.facts
            if seen.reason:
                self.notes.append(("calls, activations and outputs", seen.reason))
        self.stats = self._stats()
        if not self._recipe.optimizers:
            self.update_site = self._update_by_hand(place)

    def _update_by_hand(self, place: Place) -> SourceSpan | None:
        """Told by the first step, where the last can't be run again."""
        seen, first = self.inspection, self._checkpoints.first
        if seen is None and first is not None and not self._writes_files():
            seen, _ = self._inspector.inspect(first, [], place)
        return update_by_hand(seen.calls) if seen is not None else None

    def _writes_files(self) -> bool:
        """A step that is run again would write over what it wrote; a script's is mute then."""
        mute = getattr(self._recipe.train_step, "of_script", False)
        return self._loop_protocol.writes and not mute

    def facts(self) -> dict[str, Any]:
        return {
            "inspection": self.inspection,
            "update_site": self.update_site,
            "loop": self.loop(),
            "stats": self.stats,
            "data": self.data,
        }

    def _stats(self) -> RunStatistics | None:
        try:
            return self._course_stats()
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            # a parameter of an odd kind
            self.notes.append(
                (
                    "parameter statistics",
                    f"{type(error).__name__}: {' '.join(str(error).split())[:100]}",
                )
            )
            return None

    def _course_stats(self) -> RunStatistics:
        stats = course_stats(
            self._recipe.model,
            self._rates,
            self._norms,
            self.sampler.samples,
            self._checkpoints.first,
            self.inspection,
            self._runner.device,
            self._build,
        )
        alike = all(len(set(step)) == 1 for step in stats.rates)
        given = tuple(g for o in self._recipe.optimizers for g in given_rates(o, alike=alike))
        first = [step[0] for step in stats.rates if step]
        length = warmup_length(first, given[0] if given else None)
        return replace(
            stats,
            rounding=self._rounding,
            grown=self._ledger.grown(self._checkpoints.first),
            creeping=self._creeping(stats),
            stopped=self._stopped(stats),
            weights_grew=weights_grew(self._recipe.model, self._checkpoints.first),
            given_rates=given,
            betas=tuple(map(_betas, self._recipe.optimizers)),
            warmup_at=warmup_at(self._files(), length) if length is not None else None,
            gone_at=gone_at(self._recipe, first, self._known()),
            raised_at=raised_at(self._recipe, first, given[0] if given else None, self._known()),
        )

    def _creeping(self, stats: RunStatistics) -> tuple[CreepingFacts, ...]:
        optimizers = self._recipe.optimizers
        made = self._loop_protocol.ever_stepped if self._runner.observing else None
        steps = len(self._rates) if made is None else made // max(1, len(optimizers))
        return creeping(
            stats.parameters, self._recipe.model, optimizers, stats.rates, steps, self._build
        )

    def _stopped(self, stats: RunStatistics) -> tuple[StoppedFacts, ...]:
        if not self._norms:
            return ()
        early, norms = (
            dict(zip(vitals.names, vitals.norms, strict=True))
            for _, vitals in (self._norms[0], self._norms[-1])
        )
        moved = {one.name: one.moved for one in stats.parameters}
        model, optimizers = self._recipe.model, self._recipe.optimizers
        last: dict[int, int] = {id(optimizer): len(stats.rates) - 1 for optimizer in optimizers}
        if self._runner.observing:
            last = self._loop_protocol.last_stepped
        # the first values may be put back on purpose, batch by batch
        since = {name: step for name, step in self._ledger.still_since().items() if moved.get(name)}
        return stopped(since, norms, early, last, model, optimizers, stats.rates)

    def _files(self) -> Iterator[str]:
        """Those of the training's script and of the recipe's functions."""
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        functions = (self._recipe.loss_fn, self._recipe.train_step)
        codes = [code for code in map(code_of, functions) if code is not None]
        yield from filter(None, (main, *(code.co_filename for code in codes)))

    def loop(self) -> LoopFacts:
        return LoopFacts(
            misuses=tuple(map(_at_its_name, self._loop_protocol.misuses())),
            schedulers=tuple(self._schedulers()),
            warnings=self.warnings.facts(),
            mode_changes=tuple(self._mode_changes()),
            training_at=tuple(self._training),
            observed=self._runner.observing,
            optimizer_steps=self._loop_protocol.ever_stepped if self._runner.observing else None,
            clip_norms=self._clip_norms(),
            writes_files=self._writes_files(),
        )

    def _clip_norms(self) -> tuple[float, ...]:
        """Those that the training has not written to since."""
        noted = self._loop_protocol.clip_norms
        return values_of([norm for norm, version in noted if norm._version == version])

    def _known(self) -> list[Any]:
        """torch's schedulers that the step reaches, or that stepped in the run."""
        known = [
            *self._recipe.schedulers,
            *(value for value in reachable(self._recipe) if isinstance(value, LRScheduler)),
            *(schedule.scheduler for schedule in self._loop_protocol.schedules),
            *self._between_passes(),
        ]
        return list({id(scheduler): scheduler for scheduler in known}.values())

    def _between_passes(self) -> Iterator[LRScheduler]:
        """Those among a script's variables that step between two passes over the data, where no
        iteration reaches them (a ReduceLROnPlateau), or that have never stepped."""
        step: Any = self._recipe.train_step
        if getattr(step, "of_script", False):
            held = [*step.namespace.values(), *step.variables.values()]
            for value in held:
                if (
                    isinstance(value, LRScheduler)
                    and (isinstance(value, ReduceLROnPlateau) or value.last_epoch == 0)
                    and any(value.optimizer is o for o in self._recipe.optimizers)
                ):
                    yield value

    def _schedulers(self) -> Iterator[SchedulerFacts]:
        watched = {id(schedule.scheduler): schedule for schedule in self._loop_protocol.schedules}
        for scheduler in self._known():
            seen = watched.get(id(scheduler))
            period = getattr(scheduler, "T_max", getattr(scheduler, "total_steps", None))
            last = getattr(scheduler, "last_epoch", None)
            yield SchedulerFacts(
                type=type(scheduler).__name__,
                built_at=self._build.scheduler_built_at(scheduler),
                last_epoch=last if isinstance(last, int) else None,
                period=period if isinstance(period, int) else None,
                base=_highest(getattr(scheduler, "base_lrs", None)),
                stepped_at=resolved(seen.place) if seen is not None else self._told_at(scheduler),
                stepped_first=seen is not None
                and seen.first
                and self._loop_protocol.ever_stepped > 0,
                steps=seen.steps if seen is not None else 0,
                mode=scheduler.mode if isinstance(scheduler, ReduceLROnPlateau) else None,
            )
        yield from other_schedules(reachable(self._recipe), self._recipe.optimizers, self._files())

    def _told_at(self, scheduler: Any) -> SourceSpan | None:
        """The only line of the user's that tells a ReduceLROnPlateau how the training goes: it
        stands between two passes over the data."""
        if not isinstance(scheduler, ReduceLROnPlateau):
            return None
        found = [line for file in dict.fromkeys(self._files()) for line in lines_stepping(file)]
        return found[0] if len(found) == 1 else None

    def _mode_changes(self) -> Iterator[ModeChange]:
        names = {id(module): name for name, module in self._recipe.model.named_modules()}
        for identity, place in self._build.eval_at.items():
            if identity in names and identity not in self._loop_protocol.eval_at:
                yield ModeChange(module=names[identity], location=resolved(place), step=None)
        for identity, (called_at, step) in self._loop_protocol.eval_at.items():
            if identity in names:
                yield ModeChange(module=names[identity], location=resolved(called_at), step=step)


def _at_its_name(misuse: LoopMisuse) -> LoopMisuse:
    """At the statement that names the missing call, where there is one."""
    missing = {CARRIED: "zero_grad", NEVER_STEPPED: "step", NEVER_DIFFERENTIATED: "backward"}
    place, method = misuse.location, missing.get(misuse.kind)
    named = named_without_call(os.path.abspath(place.file), method) if place and method else None
    return replace(misuse, location=named) if named is not None else misuse


def _highest(rates: Any) -> float | None:
    """Of plain numbers: some schedules keep tensors."""
    plain = [rate for rate in rates or () if isinstance(rate, float)]
    return max(plain, default=None)


def _betas(optimizer: Any) -> tuple[float, float] | None:
    given = optimizer.defaults.get("betas")
    two = isinstance(given, (tuple, list)) and len(given) == 2
    return (given[0], given[1]) if two and all(isinstance(b, float) for b in given) else None


def per_pass(data: Any) -> int | None:
    """Batches of one pass over the data."""
    try:
        return len(loader_of(data) or data)
    except (TypeError, NotImplementedError):
        return None
