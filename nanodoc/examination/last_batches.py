"""Some of the last batches run once more when the run is over, with every public function call
written down: what was called with which shapes, which units are dead, what the model returns.
Silent bugs show there and nowhere else."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.labels import labels_at, mask_at, weights_at
from nanodoc.examination.returns import ReturnsLook
from nanodoc.examination.sequence_look import SequenceLook
from nanodoc.facts.calls import (
    CLASSIFICATION,
    CallFacts,
    InspectionFacts,
    LabelFacts,
    ModeFacts,
    OutputFacts,
    StepCalls,
    UnitFacts,
)
from nanodoc.facts.policy import ReturnFacts
from nanodoc.measure.values import SQUASHERS, Units, ValueProbe
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import leaves_of
from nanodoc.replay.weight_history import PastStep
from nanodoc.tensors.nested import batch_size, takes_hooks, tensor_leaves
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.calls import CallLog
from nanodoc.trace.eager import run_eagerly

_MOST_BATCHES = 4
_SECONDS = 5.0  # after which no further batch is looked at
_LOG_PROB = ".log_prob("  # in the source of a line
_DROPPING = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)


class Inspector:
    """Looks at one run's last steps."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper, build: BuildFacts) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())

    def inspect(
        self, last: StepState, past: Sequence[PastStep]
    ) -> tuple[InspectionFacts | None, str]:
        """(facts, "") or (None, why there are none). `past` are the steps whose batches are still
        there."""
        began = time.perf_counter()
        probe = ValueProbe()
        held = {
            id(p)
            for o in self._runner.recipe.optimizers
            for group in o.param_groups
            for p in group["params"]
        }
        watch = _ModelWatch(self._model, self._build, held)
        others = [
            state
            for state in past
            if state.step != last.step and state.intact and len(state.batches) == len(last.batches)
        ]
        chosen = [*_spread(others, _MOST_BATCHES - 1)]
        looked = 0
        labels: list[LabelFacts | None] = []
        with state_preserved(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            for state in chosen:
                if time.perf_counter() - began > _SECONDS:
                    break
                try:
                    seen = self._run(
                        replace(last, batches=state.batches, rng=state.rng), probe, None
                    )
                    labels.append(_labels(state.step, state.batches, seen))
                    looked += 1
                except (UserCodeError, UsageError):
                    continue
            try:
                calls = self._run(last, probe, watch)
            except (UserCodeError, UsageError) as error:
                cause = error.cause if isinstance(error, UserCodeError) else error
                return None, f"the last step raised {type(cause).__name__} when it was run again"
        labels.append(_labels(last.step, last.batches, calls))
        return InspectionFacts(
            step=last.step,
            labels=tuple(step for step in labels if step is not None),
            calls=calls,
            batches=looked + 1,
            units=tuple(_units(calls, probe)),
            output=watch.output,
            modes=tuple(watch.modes),
            training=watch.training,
            labels_at=labels_at(self._runner.recipe, calls),
            weights_at=weights_at(calls),
            returns=self._returns(last, calls),
            **self._sequences(last, calls),
        ), ""

    def _returns(self, last: StepState, calls: StepCalls) -> ReturnFacts | None:
        """Of a step that asks a distribution for log-probabilities."""
        if not any(_LOG_PROB in c.location.code for c in calls.calls if c.location):
            return None
        groups = [group for o in self._runner.recipe.optimizers for group in o.param_groups]
        look = ReturnsLook(maximised=any(group.get("maximize") for group in groups))
        self._look(last, look)
        return look.facts

    def _look(self, last: StepState, look: ReturnsLook | SequenceLook) -> None:
        with state_preserved(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            self._keeper.restore(last)
            batches = [self._runner.moved(batch) for batch in last.batches]
            with contextlib.suppress(UserCodeError, UsageError), look:
                run_step(self._runner, batches, on_loss=getattr(look, "on_loss", None))

    def _sequences(self, last: StepState, calls: StepCalls) -> dict[str, Any]:
        """Of a step that looks up ids."""
        if not any(call.name == "embedding" for call in calls.calls):
            return {}
        look = SequenceLook()
        self._look(last, look)
        mask = mask_at(self._runner.recipe, last.batches) if look.padding is not None else None
        return {"sequence": look.facts, "padding": look.padding, "mask_at": mask}

    def _run(self, capsule: StepState, probe: ValueProbe, watch: _ModelWatch | None) -> StepCalls:
        self._keeper.restore(capsule)
        batches = [self._runner.moved(batch) for batch in capsule.batches]
        log = CallLog(self._model, leaves_of(self._model, batches), probe.measure)
        probe.begin(log.made_of)
        if watch is not None:
            watch.begin(capsule)
        try:
            with log:
                run_step(self._runner, batches, on_loss=log.on_loss)
        finally:
            if watch is not None:
                watch.end()
        return log.finish(self._build.layer_made_at)


def _labels(step: int, batches: Sequence[Any], calls: StepCalls) -> LabelFacts | None:
    """None for a step without class labels, or with some that could not be counted."""
    reaching = calls.reaching_the_loss()
    losses = [
        call for call in calls.calls if call.name in CLASSIFICATION and call.index in reaching
    ]
    samples = sum(batch_size(batch) or 0 for batch in batches)
    rows = sum(call.arguments[1].shape[0] for call in losses if _has_rows(call))
    if not losses or not samples or any("classes_seen" not in call.notes for call in losses):
        return None
    classes = {int(call.notes["top_class"]) for call in losses}
    mixed = len(classes) > 1 or any(call.notes["classes_seen"] > 1 for call in losses)
    return LabelFacts(
        step=step,
        samples=min(samples, rows) if rows else samples,
        only=None if mixed else classes.pop(),
    )


def _has_rows(call: CallFacts) -> bool:
    return len(call.arguments) > 1 and bool(call.arguments[1].shape)


class _ModelWatch:
    """What the model returns, and in which mode its layers run, in calls that gradients flow
    through: a validation inside the step is nobody's training."""

    def __init__(self, model: torch.nn.Module, build: BuildFacts, held: set[int]) -> None:
        self._model = model
        self._build = build
        self._held = held
        self._names = {id(module): name for name, module in model.named_modules()}
        self._handles: list[Any] = []
        self._outputs: list[OutputFacts] = []
        self._size: int | None = None
        self._seen: dict[str, ModeFacts] = {}
        self.training = False

    def begin(self, capsule: StepState) -> None:
        self._size = batch_size(capsule.batches[0]) if capsule.batches else None
        if takes_hooks(self._model):
            told = self._model.register_forward_hook(self._returned, with_kwargs=True)
            self._handles.append(told)
        for module in self._model.modules():
            if isinstance(module, _DROPPING) and takes_hooks(module):
                self._handles.append(module.register_forward_pre_hook(self._called))

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def modes(self) -> list[ModeFacts]:
        return list(self._seen.values())

    @property
    def output(self) -> OutputFacts | None:
        """Of the call whose samples' outputs differ most."""
        return max(self._outputs, key=lambda output: output.spread, default=None)

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self.training |= self._model.training
        name = self._names[id(module)]
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            if module.p == 0:
                return
        elif not getattr(module, "track_running_stats", False):
            return
        parent = self._model.get_submodule(name.rpartition(".")[0])
        own = any(self._trains(p) for p in module.parameters())
        # what lies behind a frozen network may learn: its statistics are to stay
        learns = (
            any(self._trains(p) for p in parent.parameters())
            if isinstance(module, torch.nn.modules.dropout._DropoutNd)
            else own or any(t.requires_grad for _, t in tensor_leaves(list(args)))
        )
        before = self._seen.get(name)
        undone = self._build.eval_undone(module) if module.training else None
        self._seen[name] = ModeFacts(
            module=name,
            module_type=type(module).__name__,
            training=module.training or (before is not None and before.training),
            trainable=learns,
            momentum=getattr(module, "momentum", None),
            untouched=_untouched(module),
            eval_at=undone[0] if undone else None,
            train_at=undone[1] if undone else None,
            made_at=self._build.layer_made_at(name),
        )

    def _trains(self, parameter: torch.nn.Parameter) -> bool:
        return parameter.requires_grad and (not self._held or id(parameter) in self._held)

    def _returned(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        size = self._size
        if not torch.is_grad_enabled() or size is None or size < 2:
            return
        made = [
            t
            for _, t in tensor_leaves(output)
            if t.is_floating_point() and t.requires_grad and is_plain(t)
        ]
        made = [t for t in made if t.dim() and t.shape[0] == size]
        given = [
            t
            for _, t in tensor_leaves([list(args), dict(kwargs)])
            if is_plain(t) and t.dim() and t.shape[0] == size
        ]
        if not made or not given:
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            differ = any(not bool((t == t[:1]).all()) for t in given)
            spreads = [_spread_of(t) for t in made]
        self._outputs.append(
            OutputFacts(batch_size=size, spread=max(spreads), inputs_differ=differ)
        )


def _untouched(module: torch.nn.Module) -> bool:
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if mean is None or variance is None:
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return not bool(mean.any()) and bool((variance == 1).all())


def _spread_of(out: torch.Tensor) -> float:
    """Largest difference between two samples, relative to the largest value; inf for what is not
    finite."""
    rows = out.detach().float().reshape(out.shape[0], -1)
    if not rows.numel() or not bool(torch.isfinite(rows).all()):
        return math.inf
    largest = float(rows.abs().max())
    return float((rows - rows[0]).abs().max()) / largest if largest else 0.0


def _spread(steps: Sequence[PastStep], most: int) -> list[PastStep]:
    """`most` of the steps, evenly among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _units(calls: StepCalls, probe: ValueProbe) -> list[UnitFacts]:
    """One for each activation; calls from the same place in the same module are one, whatever they
    were given."""
    direct = _straight_to_the_loss(calls)
    places: dict[tuple[Any, ...], list[tuple[CallFacts, Units]]] = {}
    for call in calls.calls:
        number = call.notes.get("activation")
        units = probe.units.get((call.name, int(number))) if number is not None else None
        if units is not None and units.alive is not None:
            places.setdefault(
                (call.name, call.module, call.location, units.alive.numel()), []
            ).append((call, units))
    found = []
    for same in places.values():
        call = same[-1][0]
        alive = torch.stack([units.alive for _, units in same if units.alive is not None]).any(0)
        values, flat = sum(units.values for _, units in same), sum(units.flat for _, units in same)
        found.append(
            UnitFacts(
                call=call,
                units=alive.numel(),
                dead=int((~alive).sum()),
                values=values,
                output=all(call.index in direct for call, _ in same),
                saturated=flat / values if call.name in SQUASHERS and values else 0.0,
            )
        )
    return found


def _straight_to_the_loss(calls: StepCalls) -> frozenset[int]:
    """Positions of the calls behind which no parameter is used any more."""
    reaching = calls.reaching_the_loss()
    seen: set[int] = set()
    waiting = list(calls.losses)
    while waiting:
        call: CallFacts = calls.calls[waiting.pop()]
        if call.index in seen or call.index not in reaching:
            continue
        seen.add(call.index)
        if not any(
            argument.made_by is None and argument.requires_grad for argument in call.arguments
        ):
            waiting += [
                argument.made_by for argument in call.arguments if argument.made_by is not None
            ]
    return frozenset(seen)
