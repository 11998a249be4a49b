"""The watchers of a run, and the order in which they are told of everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanodoc.loop.guarded_watch import GuardedWatch
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper
from nanodoc.replay.traced_replay import Replayer
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.watchers.amp import AmpWatch
from nanodoc.watchers.compiled_step import COMPILED, CompiledWatch
from nanodoc.watchers.grad_graph import GraphWatch
from nanodoc.watchers.group_end import GroupEndWatch
from nanodoc.watchers.learning import LearningWatch
from nanodoc.watchers.local_clips import LocalClipWatch
from nanodoc.watchers.probes import ProbeWatch
from nanodoc.watchers.rank_course import RankCourseWatch
from nanodoc.watchers.rank_gradients import RankGradientsWatch
from nanodoc.watchers.requested_steps import LookOptions, RequestedSteps
from nanodoc.watchers.sampling import Sampler
from nanodoc.watchers.saved_files import SavedFilesWatch
from nanodoc.watchers.watch import Watch


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """What the watchers are asked to do."""

    looks: LookOptions = field(default_factory=LookOptions)
    leak_check: bool = True
    range_check: bool = True
    samples: bool = True
    sample_every: int | None = None

    @property
    def closely(self) -> bool:
        """More is to be seen of each step than usual, or less."""
        looks = bool(self.looks.steps) or self.looks.frames
        return looks or not self.samples or self.sample_every is not None


class Watches:
    """Every watcher of one run, by name and in order."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        replayer: Replayer,
        build: BuildFacts,
        checkpoints: WeightHistory,
        options: WatchOptions,
    ) -> None:
        recipe = runner.recipe
        compiled = build.is_compiled(recipe.model)
        self.graph = GraphWatch(
            runner,
            keeper,
            build,
            leak_check=options.leak_check,
            range_check=options.range_check,
        )
        self.amp = AmpWatch(runner, keeper, replayer, build)
        self.probes = ProbeWatch()
        self.requested = RequestedSteps(
            runner, keeper, replayer, self.amp, options.looks, compiled=compiled
        )
        self.sampler = Sampler(
            recipe.model,
            recipe.optimizers,
            every=options.sample_every,
            hooks=lambda: not compiled and not self.graph.fused(),
            enabled=options.samples,
        )
        self.learning = LearningWatch(
            runner, keeper, build, self.amp.calls.loop_protocol, checkpoints, self.sampler
        )
        self.rank_gradients = RankGradientsWatch()
        # in this order they are told of everything; the scaler's scalars are the first to be read,
        # where the observer expects the scale
        self.in_order: tuple[Watch, ...] = (
            GuardedWatch(self.graph, "the autograd graph"),
            GuardedWatch(self.amp, "mixed precision"),
            GuardedWatch(self.probes, "nanodoc.probe"),
            GuardedWatch(self.requested, "the requested steps"),
            GuardedWatch(self.sampler, "sampled steps"),
            GuardedWatch(self.learning, "learning statistics"),
            GuardedWatch(CompiledWatch(runner, keeper, build), COMPILED),
            GuardedWatch(SavedFilesWatch(), "files saved by ranks"),
            GuardedWatch(GroupEndWatch(recipe.model), "the end of the process group"),
            GuardedWatch(LocalClipWatch(), "clipping of sharded gradients"),
            GuardedWatch(
                RankCourseWatch(recipe.model, recipe.optimizers, build),
                "ranks beside each other",
            ),
            GuardedWatch(self.rank_gradients, "gradients across ranks"),
        )
        moments = ("before_step", "around_step", "after_backward", "after_step", "line", "hopeless")
        self.hearing = {
            moment: [watch for watch in self.in_order if watch.hears(moment)] for moment in moments
        }
        """Those that do something at each moment of a step."""
