"""What a run watches about gradients besides their values: who gets none, who owns what, and whether samples mix.

On a healthy step this costs a set of names. A step in which trainable parameters are left without a gradient is examined
once; the samples' independence is tried once, on the first step. Both leave the run as if they had not been.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.differential.leak import ModelCall, find_leak
from nanodoc.engine.batches import batch_size
from nanodoc.engine.build_facts import BuildFacts
from nanodoc.engine.capsule import Keeper, StepCapsule, copy_optimizer, copy_weights
from nanodoc.engine.carried import KeptTensors
from nanodoc.engine.followed import FollowedStep
from nanodoc.engine.graph_check import GraphExaminer
from nanodoc.engine.ownership import Ownership, fingerprint
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UserCodeError
from nanodoc.evidence import SourceSpan
from nanodoc.graph_evidence import GraphFacts, GrowingFacts, LeakFacts
from nanodoc.trace.spans import LIBRARY, USER, Place, frame_kind, resolve

_LATEST = 3  # the last step (counted from 0) at which a graph is examined for a missing gradient
_ZERO_STEPS = 3  # a gradient that is exactly zero at the start is normal (LoRA, gates initialised to zero)


class GraphWatch:
    """One run's watch. The engine tells it of every step; the facts are there when the run has ended."""

    def __init__(self, runner: StepRunner, keeper: Keeper, build: BuildFacts, *, leak_check: bool) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._named = list(runner.recipe.model.named_parameters())
        self._call = ModelCall() if leak_check else None
        self._examiner = GraphExaminer(runner, keeper)
        self._with_gradient: set[str] = set()
        self._nonzero: set[str] = set()
        self._steps = 0
        self._pending = False
        self._switched_off: Place | None = None
        self._followed: FollowedStep | None = None
        self._marks: dict[str, tuple[float, float]] = {}
        self.ownership = Ownership(runner.recipe, build)
        self.graph: GraphFacts | None = None
        self.leak: LeakFacts | None = None
        self.growing: tuple[GrowingFacts, ...] = ()
        self._sizes: list[dict[str, int]] = []
        self.notes: list[tuple[str, str]] = []

    def begin(self) -> None:
        """Before the first step."""
        self.ownership.begin()
        self._examiner.initial = {name: fingerprint(p) for name, p in self._named if not is_lazy(p)}
        if self._call is None:
            self.notes.append(("cross-sample leak", "switched off"))

    def follow(self, capsule: StepCapsule) -> FollowedStep | None:
        """The first step is followed while it runs: that costs one traced step and no replay. Compiled parts would have to
        run eagerly for it, so a recipe that compiles is only examined where gradients are missing."""
        recipe = self._runner.recipe
        compiled = self._build.compiled or any(hasattr(m, "_orig_mod") for m in recipe.model.modules())
        if capsule.step or compiled or self.graph is not None:
            return None
        self._followed = FollowedStep(recipe, capsule.batches)
        return self._followed

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around the run: remembers the line that last switched gradients off, for the case that nobody switches them on again,
        and optimizers that were made after build()."""
        original = torch.set_grad_enabled.__init__
        watch = self

        def init(switch: Any, mode: bool) -> None:
            original(switch, mode)
            if not mode:
                frame = sys._getframe(1)
                watch._switched_off = (frame.f_code, frame.f_lasti)

        torch.set_grad_enabled.__init__ = init  # type: ignore[method-assign, assignment]  # put back below
        hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self.ownership.saw_stepping(optimizer))
        try:
            yield
        finally:
            hook.remove()
            torch.set_grad_enabled.__init__ = original  # type: ignore[method-assign]  # the original

    def switched_off_at(self) -> SourceSpan | None:
        """Where gradients were switched off for good, during the run or before it."""
        if torch.is_grad_enabled():
            return None
        if self._switched_off is not None and frame_kind(self._switched_off[0].co_filename) in (USER, LIBRARY):
            return resolve(*self._switched_off)
        return self._build.grad_switched_off_at()

    @contextlib.contextmanager
    def first_call(self, step: int) -> Iterator[None]:
        """Around the first step: the model's arguments are remembered for the leak check."""
        if step or self._call is None:
            yield
            return
        with self._call.caught(self._runner.recipe.model, self._runner.device):
            yield

    # -- told by the engine ------------------------------------------------------------------------------------------

    def before_step(self, capsule: StepCapsule) -> None:
        """A train_step is examined before it runs again, since afterwards its weights have moved."""
        if self._pending and self.graph is None:
            self._pending = False
            self._aside(lambda: self._examine(capsule))

    def after_backward(self, capsule: StepCapsule, norms: Mapping[str, float], *, stepped: bool) -> float:
        """`norms` are those of the parameters that have a gradient. `stepped`: the weights have moved already (a train_step).
        Returns the seconds that looking took."""
        began = time.perf_counter()
        self._with_gradient.update(norms)
        self._nonzero.update(name for name, norm in norms.items() if norm != 0)
        self._steps += 1
        if capsule.step == 0 and self._call is not None:
            self._aside(lambda: self._check_leak(capsule))
        if 1 <= capsule.step <= _LATEST:
            self._sizes.append(KeptTensors(self._runner.recipe).sizes())
            self._look_for_growth(capsule)
        followed, self._followed = self._followed, None
        if followed is not None:
            self._aside(lambda: self._judge(capsule, followed))
        elif self.graph is None and capsule.step <= _LATEST and self._suspicious(capsule.step):
            if stepped:
                self._pending = True
            else:
                self._aside(lambda: self._examine(capsule))
        return time.perf_counter() - began

    def at_failure(self, capsule: StepCapsule, error: UserCodeError) -> None:
        """The step raised for its graph: the run is over, so nothing has to be put back but what the capsule holds."""
        self._examine(capsule, error)

    def at_end(self, capsule: StepCapsule | None) -> None:
        """A train_step whose run ended before it could be examined."""
        if self._pending and self.graph is None and capsule is not None:
            self._aside(lambda: self._examine(capsule))

    # -- what is known at the end --------------------------------------------------------------------------------------

    @property
    def never(self) -> tuple[str, ...]:
        return tuple(name for name, p in self._named if p.requires_grad and name not in self._with_gradient) if self._steps else ()

    @property
    def always_zero(self) -> tuple[str, ...]:
        if self._steps < _ZERO_STEPS:
            return ()
        return tuple(name for name, _ in self._named if name in self._with_gradient and name not in self._nonzero)

    @property
    def moved(self) -> tuple[str, ...]:
        """Parameters without a gradient whose values changed since they were examined (an average kept by hand)."""
        now = {name: fingerprint(p) for name, p in self._named if name in self._marks}
        return tuple(name for name, before in self._marks.items() if now[name] != before)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _suspicious(self, step: int) -> bool:
        held = {id(p) for o in self._runner.recipe.optimizers for group in o.param_groups for p in group["params"]}
        missing = [name for name, p in self._named if p.requires_grad and name not in self._with_gradient and (id(p) in held or not held)]
        return bool(missing) or (step == _ZERO_STEPS - 1 and bool(self.always_zero))

    def _judge(self, capsule: StepCapsule, step: FollowedStep) -> None:
        self.graph = self._examiner.judge(capsule, step)
        self._mark()

    def _mark(self) -> None:
        self._marks = {name: fingerprint(p) for name, p in self._named if p.requires_grad and name not in self._with_gradient}

    def _examine(self, capsule: StepCapsule, error: UserCodeError | None = None) -> None:
        try:
            self.graph = self._examiner.examine(capsule, error)
        except UserCodeError as raised:
            self.notes.append(("the autograd graph", f"the step raised {type(raised.cause).__name__} when it was run again"))
            return
        self._mark()

    def _look_for_growth(self, capsule: StepCapsule) -> None:
        """Something kept whose graph has more nodes after every step."""
        if len(self._sizes) < _LATEST:
            return
        for name in self._sizes[-1]:
            nodes = [sizes.get(name, 0) for sizes in self._sizes]
            if all(a < b for a, b in zip([0, *nodes], nodes, strict=False)):
                where: list[SourceSpan | None] = []
                self._aside(lambda name=name, where=where: where.append(self._examiner.keeper_of(capsule, name)))  # type: ignore[misc]  # bound now
                self.growing = (*self.growing, GrowingFacts(name=name, nodes=tuple(nodes), kept_at=where[0]))

    def _check_leak(self, capsule: StepCapsule) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        size = batch_size(capsule.batches[0]) if capsule.batches else None
        self.leak, reason = find_leak(
            self._runner.recipe.model, call, self._runner.device, size or 0,
            lambda: self._keeper.restore(capsule), independent=_collated(self._runner.recipe.data),
        )  # fmt: skip
        if self.leak is not None and self.leak.op.module and self.leak.layer_type and self.leak.kind in ("recurrent", "attention"):
            self.leak = replace(self.leak, built_at=self._build.layer_made_at(self.leak.op.module))
        if reason is not None:
            self.notes.append(("cross-sample leak", reason))

    def _aside(self, look: Callable[[], None]) -> None:
        """Runs `look` and puts model, random states and gradients back as they are now."""
        now = self._keeper.take(0, [], apart=True)
        if self._runner.observing:  # a train_step moves weights; the capsule may hold those from before it
            now.weights = copy_weights(self._named)
            now.optimizers = [copy_optimizer(one) for one in self._runner.recipe.optimizers]
        grads = [p.grad for _, p in self._named]
        try:
            look()
        finally:
            self._keeper.restore(now)
            for (_, parameter), grad in zip(self._named, grads, strict=True):
                parameter.grad = grad


def _collated(data: object) -> bool:
    """The batches are put together from single samples, which are then independent of each other."""
    return isinstance(data, torch.utils.data.DataLoader) and data.batch_sampler is not None
