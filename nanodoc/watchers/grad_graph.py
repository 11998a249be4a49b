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
from nanodoc.examination.leak import find_leak
from nanodoc.examination.network_calls import NetworkCall, NetworkCalls
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
from nanodoc.tensors.nested import takes_hooks
from nanodoc.tensors.plain import without_values
from nanodoc.tensors.sums import fingerprint
from nanodoc.trace.files import LIBRARY, USER, frame_kind
from nanodoc.trace.spans import Place, resolve
from nanodoc.watchers.sample_dimension import batches_of, count_samples, drawn_by, rows_of
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
        self._calls = NetworkCalls() if leak_check else None
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
        if self._calls is None:
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
        """What the networks are given in the first step is remembered for the leak check."""
        if start.step or self._calls is None:
            return NOTHING
        model = self._runner.recipe.model
        # compiled parts and fused attention compute otherwise where they have hooks
        parts = not self._build.is_compiled(model) and not self.fused()
        return self._calls.caught(model, self._runner.device, parts=parts)

    def let_go(self) -> None:
        """Forgets what networks and the call that failed were given: the device has no memory left
        for what that holds."""
        self._calls = None
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
                asks=lambda: self._calls is not None,
                work=lambda place: self._check_leaks(first),
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

    def _check_leaks(self, capsule: StepState) -> Iterator[None]:
        assert self._calls is not None
        recipe, found = self._runner.recipe, list(self._calls.found.values())
        self._calls = None
        if not found:
            self.notes.append((LEAK, _uncalled(recipe.model)))
        size, doubt = count_samples(drawn_by(recipe), batches_of(capsule))
        for number, call in enumerate(found):
            if number:
                yield
            with state_preserved(self._runner, self._keeper):
                why = self._check_leak(capsule, call, size, doubt)
            if why is not None:
                self.notes.append((LEAK, f"{call.path}: {why}" if call.path else why))

    def _check_leak(
        self, capsule: StepState, call: NetworkCall, size: int, doubt: str | None
    ) -> str | None:
        """Looks for one in a network; why that was not possible. Where no row of its input has
        changed another one's output, it does not matter whether the rows are samples."""
        rows, why = rows_of(call, size, doubt)
        if rows < 2:
            return why
        try:
            leak, reason = find_leak(
                call,
                self._runner.device,
                rows,
                lambda: self._keeper.restore(capsule),
                independent=why is None and _collated(drawn_by(self._runner.recipe)),
            )
        finally:  # forward passes without a backward pass leave what FSDP2 gathered for them
            as_between_steps(self._runner.recipe.model)
        if leak is None or self.leak is not None:
            return reason
        if why is not None:
            return f"rows of its input influence each other, but {why}"
        if leak.op.module and leak.layer_type and leak.kind in ("recurrent", "attention"):
            leak = replace(leak, built_at=self._build.layer_made_at(leak.op.module))
        self.leak = leak
        return reason

    def _aside(self, look: Callable[[], None]) -> None:
        with state_preserved(self._runner, self._keeper):
            look()


def _uncalled(model: torch.nn.Module) -> str:
    if not takes_hooks(model):
        return "the model is a TorchScript module, which takes no hooks"
    return "the step calls neither the model nor a part of it"


def _collated(loader: Any) -> bool:
    """The batches are put together from single samples, which are then independent of each
    other."""
    return getattr(getattr(loader, "_index_sampler", None), "batch_size", None) is not None
