"""Some of the last batches run once more when the run is over, with every public function call written down: what was called with
which shapes, which units are dead, what the model returns. Silent bugs show there and nowhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.call_evidence import CallFacts, InspectionFacts, ModeFacts, OutputFacts, RangeFacts, StepCalls, UnitFacts
from nanodoc.engine.aside import put_back, warnings_unsaid
from nanodoc.engine.batches import batch_size, tensor_leaves, to_device
from nanodoc.engine.build_facts import BuildFacts
from nanodoc.engine.capsule import Keeper, StepCapsule
from nanodoc.engine.checkpoints import PastStep
from nanodoc.engine.observer import Observer
from nanodoc.engine.replaying import leaves_of
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.probes.values import SQUASHERS, ValueProbe
from nanodoc.trace.calls import CallLog
from nanodoc.trace.eager import run_eagerly

_MOST_BATCHES = 4
_SECONDS = 5.0  # after which no further batch is looked at
_DROPPING = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)


class Inspector:
    """Looks at one run's last steps."""

    def __init__(self, runner: StepRunner, keeper: Keeper, build: BuildFacts) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())

    def inspect(self, last: StepCapsule, past: Sequence[PastStep]) -> tuple[InspectionFacts | None, str]:
        """(facts, "") or (None, why there are none). `past` are the steps whose batches are still there."""
        began = time.perf_counter()
        probe = ValueProbe()
        watch = _ModelWatch(self._model, self._build)
        others = [one for one in past if one.step != last.step and one.intact and len(one.batches) == len(last.batches)]
        chosen = [*_spread(others, _MOST_BATCHES - 1)]
        looked = 0
        with put_back(self._runner, self._keeper), warnings_unsaid(), run_eagerly():
            for one in chosen:
                if time.perf_counter() - began > _SECONDS:
                    break
                try:
                    self._run(replace(last, batches=one.batches, rng=one.rng), probe, None)
                    looked += 1
                except (UserCodeError, UsageError):
                    continue
            try:
                calls = self._run(last, probe, watch)
            except (UserCodeError, UsageError) as error:
                cause = error.cause if isinstance(error, UserCodeError) else error
                return None, f"the last step raised {type(cause).__name__} when it was run again"
        return InspectionFacts(
            step=last.step, calls=calls, batches=looked + 1, units=tuple(_units(calls, probe)), output=watch.output(last), modes=tuple(watch.modes),
            training=watch.training,
        ), ""  # fmt: skip

    def ranges(self, capsule: StepCapsule) -> tuple[RangeFacts, ...]:
        """Indices and labels out of range in a step that raised, run once more until it raises again."""
        log: list[RangeFacts] = []
        with put_back(self._runner, self._keeper), warnings_unsaid(), run_eagerly(), contextlib.suppress(UserCodeError, UsageError):
            self._run(capsule, ValueProbe(), None, log)
        return tuple(log)

    def _run(self, capsule: StepCapsule, probe: ValueProbe, watch: _ModelWatch | None, ranges: list[RangeFacts] | None = None) -> StepCalls:
        self._keeper.restore(capsule)
        batches = [to_device(batch, self._runner.device) for batch in capsule.batches]
        log = CallLog(self._model, leaves_of(self._model, batches), probe.measure)
        probe.begin(log.made_of)
        if watch is not None:
            watch.begin()
        try:
            with log:
                if self._runner.observing:
                    observer = Observer(self._runner.recipe, self._named, expected_steps=1).watch(None)
                    observer.on_loss = log.on_loss
                    with observer:
                        self._runner.call_train_step(batches[0])
                else:
                    self._runner.compute(batches, log.on_loss)
        finally:
            if watch is not None:
                watch.end()
            if ranges is not None:
                ranges += log.ranges
        return log.finish()


class _ModelWatch:
    """What the model returns, and in which mode its layers run."""

    def __init__(self, model: torch.nn.Module, build: BuildFacts) -> None:
        self._model = model
        self._build = build
        self._names = {id(module): name for name, module in model.named_modules()}
        self._handles: list[Any] = []
        self._output: torch.Tensor | None = None
        self._seen: dict[str, ModeFacts] = {}
        self.training = True

    def begin(self) -> None:
        self._handles.append(self._model.register_forward_hook(self._returned, always_call=False))
        for module in self._model.modules():
            if isinstance(module, _DROPPING):
                self._handles.append(module.register_forward_pre_hook(self._called))

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def modes(self) -> list[ModeFacts]:
        return list(self._seen.values())

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names[id(module)]
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            if module.p == 0:
                return
        elif not getattr(module, "track_running_stats", False):
            return
        self.training = self._model.training
        parent = self._model.get_submodule(name.rpartition(".")[0])
        learns = any(p.requires_grad for p in parent.parameters())
        self._seen[name] = ModeFacts(
            module=name, module_type=type(module).__name__, training=module.training, trainable=learns,
            momentum=getattr(module, "momentum", None), made_at=self._build.layer_made_at(name),
        )  # fmt: skip

    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._output = next((t.detach() for _, t in tensor_leaves(output) if t.is_floating_point() and t.dim() >= 1), None)

    def output(self, last: StepCapsule) -> OutputFacts | None:
        """How much the samples' outputs differ."""
        size = batch_size(last.batches[0]) if last.batches else None
        out, self._output = self._output, None
        if out is None or size is None or size < 2 or out.shape[0] != size or out.layout is not torch.strided:
            return None
        rows = out.float().flatten(1) if out.dim() > 1 else out.float()[:, None]
        if not bool(torch.isfinite(rows).all()):
            return None
        largest = float(rows.abs().max())
        spread = float((rows - rows[0]).abs().max())
        inputs = [t for _, t in tensor_leaves(last.batches[0]) if t.dim() and t.shape[0] == size and t.layout is torch.strided]
        differ = bool(inputs) and not bool((inputs[0] == inputs[0][:1]).all())
        return OutputFacts(batch_size=size, spread=spread / largest if largest else 0.0, inputs_differ=differ)


def _spread(steps: Sequence[PastStep], most: int) -> list[PastStep]:
    """`most` of the steps, evenly among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _units(calls: StepCalls, probe: ValueProbe) -> list[UnitFacts]:
    found = []
    direct = _straight_to_the_loss(calls)
    for call in calls.calls:
        number = call.notes.get("activation")
        if number is None:
            continue
        units = probe.units[call.name, int(number)]
        if units.alive is None:
            continue
        found.append(
            UnitFacts(
                call=call,
                units=units.alive.numel(),
                dead=int((~units.alive).sum()),
                values=units.values,
                saturated=units.flat / units.values if call.name in SQUASHERS and units.values else 0.0,
                output=call.index in direct,
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
        if not any(one.made_by is None and one.requires_grad for one in call.arguments):
            waiting += [one.made_by for one in call.arguments if one.made_by is not None]
    return frozenset(seen)
