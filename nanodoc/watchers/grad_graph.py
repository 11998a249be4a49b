"""What a run watches about gradients besides their values: who gets none, who owns what, and
whether samples mix.

The first step is followed while it runs, which changes nothing of it. Whatever has to be run again
(fixes to be tried, a sample to be changed) waits until the run is over: training code keeps state
in places that nobody can put back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.followed_step import FollowedStep
from nanodoc.examination.grad_graph import GraphExaminer
from nanodoc.examination.leak import ModelCall, find_leak
from nanodoc.examination.parameter_groups import Ownership
from nanodoc.examination.retained_tensors import KeptTensors
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.evidence import GRADIENT_FLOW
from nanodoc.facts.graph import GraphFacts, GrowingFacts, LeakFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import caller, look_through
from nanodoc.instrument.taps import BEFORE_STEP, GRAD_SWITCHED, listening
from nanodoc.looks.scheduler import Look, Stage
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.variables import variables_of
from nanodoc.replay.fsdp import as_between_steps
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.tensors.plain import without_values
from nanodoc.tensors.sums import fingerprint
from nanodoc.trace.files import LIBRARY, USER, frame_kind
from nanodoc.trace.spans import Place, resolve
from nanodoc.watchers.sample_dimension import count_samples
from nanodoc.watchers.watch import NOTHING, RunEnd, Watch

look_through(__file__)

_LATEST = 3  # the steps after the first one in which kept graphs are counted
_FUSED = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerEncoder,
)
# a gradient that is exactly zero at the start is normal (LoRA, gates initialised to zero)
_ZERO_STEPS = 3
LEAK = "cross-sample leak"


class GraphWatch(Watch):
    """One run's watch. The engine tells it of every step; the facts are there when the run has
    ended."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        build: BuildFacts,
        *,
        leak_check: bool,
        range_check: bool = True,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._named = list(runner.recipe.model.named_parameters())
        self._call = ModelCall() if leak_check else None
        self._range_check = range_check
        self._examiner = GraphExaminer(runner, keeper)
        self._with_gradient: set[str] = set()
        self._nonzero: set[str] = set()
        self._steps = 0
        self._switched_off: Place | None = None
        self._followed: FollowedStep | None = None
        self._first: StepState | None = None
        self.moved: tuple[str, ...] = ()
        """Parameters that never got a gradient and whose values changed all the same (an average
        kept by hand)."""
        self.ownership = Ownership(runner.recipe, build)
        self.graph: GraphFacts | None = None
        self.leak: LeakFacts | None = None
        self.growing: tuple[GrowingFacts, ...] = ()
        self._sizes: list[dict[str, int]] = []
        if self._call is None:
            self.notes.append((LEAK, "switched off (--no-leak-check)"))

    def follow(self, capsule: StepState) -> FollowedStep | None:
        """The first step is followed while it runs: that costs one traced step and no replay. What
        would compute otherwise while it is watched, compiled parts and fused attention, is run
        again when the run is over instead."""
        if capsule.step:
            return None
        recipe = self._runner.recipe
        if self._build.is_compiled(recipe.model) or self.fused():
            return None
        self._followed = FollowedStep(recipe, capsule.batches, ranges=self._range_check)
        return self._followed

    def fused(self) -> bool:
        """Attention layers in eval mode leave their fused path while a function mode watches, and
        round otherwise."""
        recipe = self._runner.recipe
        beside = [
            value
            for f in (recipe.loss_fn, recipe.criterion, recipe.train_step)
            for _, _, value in variables_of(f)
        ]
        roots = [recipe.model, *(value for value in beside if isinstance(value, torch.nn.Module))]
        # the step itself may put them into eval mode for a pass of its own
        return any(isinstance(m, _FUSED) for root in roots for m in root.modules())

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        """Remembers the line that last switched gradients off, for the case that
        nobody switches them on again, and optimizers that were made after build()."""
        self.ownership.begin()
        self._examiner.initial = {
            name: fingerprint(p) for name, p in self._named if not without_values(p)
        }

        def switching(original: Callable[..., Any]) -> Callable[..., Any]:
            def init(switch: Any, mode: bool) -> None:
                original(switch, mode)
                if not mode:
                    frame = caller()
                    self._switched_off = (frame.f_code, frame.f_lasti)

            return init

        with listening((GRAD_SWITCHED, switching), (BEFORE_STEP, self.ownership.saw_stepping)):
            yield

    def switched_off_at(self) -> SourceSpan | None:
        """Where gradients were switched off for good, during the run or before it."""
        if torch.is_grad_enabled():
            return None
        if self._switched_off is not None and frame_kind(self._switched_off[0].co_filename) in (
            USER,
            LIBRARY,
        ):
            return resolve(*self._switched_off)
        return self._build.grad_switched_off_at()

    def around_step(self, start: StepState) -> contextlib.AbstractContextManager[Any]:
        """The model's arguments of the first step are remembered for the leak check."""
        if start.step or self._call is None:
            return NOTHING
        return self._call.caught(self._runner.recipe.model, self._runner.device)

    def let_go(self) -> None:
        """Forgets the model's arguments and those of the call that failed: the device has no memory
        left for what they hold."""
        self._call = None
        if self._followed is not None:
            self._followed.functions.failing = None

    # -- told by the engine ------------------------------------------------------------------------

    def before_step(self, start: StepState) -> float:
        """Keeps the first step's start for the looks that are taken when the run is over."""
        if start.step == 0:
            self._first = self._keeper.take(0, start.batches, apart=True)
        return 0.0

    def after_backward(self, start: StepState, norms: Mapping[str, float]) -> float:
        began = time.perf_counter()
        self._with_gradient.update(norms)
        if not self._nonzero.issuperset(norms):
            self._nonzero.update(name for name, norm in norms.items() if norm != 0)
        self._steps += 1
        if 1 <= start.step <= _LATEST:
            self._sizes.append(KeptTensors(self._runner.recipe).sizes())
        return time.perf_counter() - began

    def at_failure(self, capsule: StepState, error: UserCodeError) -> None:
        """The step raised for its graph: the run is over, so nothing has to be put back but what
        the capsule holds."""
        self._examine(capsule, error)

    def at_end(self, end: RunEnd) -> None:
        """Judges the first step. Only now: nothing that is run again can change the run any more,
        whatever the training code keeps where."""
        if not end.clean:
            return
        never = set(self.never)
        now = {
            name: fingerprint(p)
            for name, p in self._named
            if name in never and not without_values(p)
        }
        self.moved = tuple(
            name for name, value in now.items() if value != self._examiner.initial.get(name, value)
        )
        if self._first is None:
            return
        first, followed, last = self._first, self._followed, end.last
        end.looks.add(
            Look(
                name="the first step",
                group=GRADIENT_FLOW,
                stage=Stage.LAST_STEPS,
                due=True,  # half of what is silent is a parameter that learns nothing
                likely=0.5,
                runs=0 if followed is not None else 5,
                work=lambda place: self._aside(
                    (lambda: self._judge(first, followed))
                    if followed is not None
                    else (lambda: self._examine(first))
                ),
            )
        )
        end.looks.add(
            Look(
                name="a leak between samples",
                group=LEAK,
                stage=Stage.LAST_STEPS,
                likely=0.05,  # few models mix samples, and they learn nearly as well
                runs=4,  # some forward passes, and one that is traced where a leak shows
                asks=lambda: self._call is not None,
                work=lambda place: self._aside(lambda: self._check_leak(first)),
            )
        )
        grown = list(self._grown()) if last is not None else []
        end.looks.add(
            Look(
                name="what keeps the growing graph",
                group=GRADIENT_FLOW,
                stage=Stage.LAST_STEPS,
                likely=0.9,  # that something grows is known already
                runs=len(grown),
                first=1,
                asks=lambda: bool(grown),
                work=lambda place: self._find_keepers(last, grown),
            )
        )

    @property
    def ranges(self) -> tuple[RangeFacts, ...]:
        """Indices and labels that were out of range on the first step."""
        return tuple(self._followed.functions.ranges) if self._followed is not None else ()

    def facts(self) -> dict[str, Any]:
        return {
            "graph": self.graph,
            "never_got_gradient": self.never,
            "always_zero": self.always_zero,
            "moved_by_hand": self.moved,
            "leak": self.leak,
            "growing": self.growing,
            "grad_switched_off_at": self.switched_off_at(),
        }

    # -- what is known at the end ------------------------------------------------------------------

    @property
    def never(self) -> tuple[str, ...]:
        return (
            tuple(
                name
                for name, p in self._named
                if p.requires_grad and name not in self._with_gradient
            )
            if self._steps
            else ()
        )

    @property
    def always_zero(self) -> tuple[str, ...]:
        if self._steps < _ZERO_STEPS:
            return ()
        return tuple(
            name
            for name, _ in self._named
            if name in self._with_gradient and name not in self._nonzero
        )

    # -- looking -----------------------------------------------------------------------------------

    def _judge(self, capsule: StepState, step: FollowedStep) -> None:
        self.graph = self._examiner.judge(capsule, step)

    def _examine(self, capsule: StepState, error: UserCodeError | None = None) -> None:
        try:
            self.graph = self._examiner.examine(capsule, error)
        except UserCodeError as raised:
            self.notes.append(
                (
                    "the autograd graph",
                    f"the step raised {type(raised.cause).__name__} when it was re-run",
                )
            )

    def _grown(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """What is kept with a graph of more nodes after every step that was looked at."""
        if len(self._sizes) < _LATEST:
            return
        for name in self._sizes[-1]:
            nodes = [sizes.get(name, 0) for sizes in self._sizes]
            if all(a < b for a, b in zip([0, *nodes], nodes, strict=False)):
                yield name, tuple(nodes)

    def _find_keepers(
        self, last: StepState | None, grown: list[tuple[str, tuple[int, ...]]]
    ) -> Iterator[None]:
        assert last is not None
        for number, (name, nodes) in enumerate(grown):
            if number:
                yield
            with state_preserved(self._runner, self._keeper):
                where = self._examiner.keeper_of(last, name)
            self.growing = (*self.growing, GrowingFacts(name=name, nodes=nodes, kept_at=where))

    def _check_leak(self, capsule: StepState) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        size, why = count_samples(self._runner.recipe.data, capsule.batches)
        if why is not None:
            self.notes.append((LEAK, why))
            return
        try:
            self.leak, reason = find_leak(
                self._runner.recipe.model,
                call,
                self._runner.device,
                size,
                lambda: self._keeper.restore(capsule),
                independent=_collated(self._runner.recipe.data),
            )
        finally:  # forward passes without a backward pass leave what FSDP2 gathered for them
            as_between_steps(self._runner.recipe.model)
        if (
            self.leak is not None
            and self.leak.op.module
            and self.leak.layer_type
            and self.leak.kind in ("recurrent", "attention")
        ):
            self.leak = replace(self.leak, built_at=self._build.layer_made_at(self.leak.op.module))
        if reason is not None:
            self.notes.append((LEAK, reason))

    def _aside(self, look: Callable[[], None]) -> None:
        with state_preserved(self._runner, self._keeper):
            look()


def _collated(data: object) -> bool:
    """The batches are put together from single samples, which are then independent of each
    other."""
    return isinstance(data, torch.utils.data.DataLoader) and data.batch_sampler is not None
