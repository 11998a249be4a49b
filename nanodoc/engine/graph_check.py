"""Rewind a step, run it again with its gradient flow followed, and say which parameters get no gradient and why."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nanodoc.differential.graph_remedies import CallPatch
from nanodoc.engine.batches import tensor_leaves, to_device
from nanodoc.engine.capsule import Keeper, StepCapsule, copy_optimizer, copy_weights
from nanodoc.engine.carried import KeptTensors
from nanodoc.engine.eager import run_eagerly
from nanodoc.engine.observer import Observer
from nanodoc.engine.saved import Overwritten, SavedTensorWatch
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.evidence import OpFacts, SourceSpan
from nanodoc.graph_evidence import (
    CUT,
    FROZEN,
    GRADIENT,
    LOST,
    UNREACHED,
    UNUSED,
    ZERO,
    CutFacts,
    GradientMismatch,
    GraphFacts,
    ModuleEdge,
    OverwriteFacts,
    ParameterState,
    fix_key,
)  # fmt: skip
from nanodoc.trace.custom import CustomNodes
from nanodoc.trace.cuts import Cut, GradFlow, module_edges
from nanodoc.trace.flow import FlowLog
from nanodoc.trace.functions import FunctionWatch
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.ops import plain_name
from nanodoc.trace.spans import Place, calling_places, resolve
from nanodoc.trace.tracer import Tracer

_COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne", "isclose", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or"}
_INDICES = {"argmax", "argmin", "argsort", "multinomial", "nonzero", "searchsorted", "bucketize", "one_hot", "bernoulli", "unique"}
_MOST_CUTS = 6
_MOST_SITES = 4  # exporting lines tried one by one, each a replay


@dataclass(slots=True)
class _Replay:
    """One followed run of the step."""

    trace: StepTrace
    flow: FlowLog
    losses: list[str]
    needs_grad: bool
    rewrapped: bool
    calls: list[SourceSpan | None]
    with_gradient: set[str]
    norms: dict[str, float]
    trainable: dict[str, bool]
    error: UserCodeError | None
    custom: CustomNodes
    functions: FunctionWatch
    saved: SavedTensorWatch | None = None
    kept: KeptTensors | None = None
    fresh: list[tuple[str, SourceSpan | None]] = field(default_factory=list)


class GraphExaminer:
    """Examines the autograd graph of single steps. Model and optimizers are left as they were."""

    def __init__(self, runner: StepRunner, keeper: Keeper) -> None:
        self._runner = runner
        self._keeper = keeper
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())
        self.edges: tuple[ModuleEdge, ...] = ()
        """The module-level picture of the last step examined."""

    def keeper_of(self, capsule: StepCapsule, name: str) -> SourceSpan | None:
        """The line of the step that keeps a tensor with its graph under `name`."""
        self._keep_weights(capsule)
        try:
            replay = self._replay(capsule)
            return replay.kept.kept_at(name, replay.trace, replay.flow) if replay.kept is not None else None
        finally:
            self._keeper.restore(capsule)

    def _keep_weights(self, capsule: StepCapsule) -> None:
        if self._runner.observing and capsule.weights is None:
            capsule.weights = copy_weights(self._named)
            capsule.optimizers = [copy_optimizer(one) for one in self._runner.recipe.optimizers]

    def examine(self, capsule: StepCapsule, failure: UserCodeError | None = None) -> GraphFacts:
        """The facts of one step. `failure` is what the step raised when it first ran."""
        self._keep_weights(capsule)
        message = str(failure.cause) if failure is not None else ""
        try:
            replay = self._replay(capsule, saved="modified by an inplace operation" in message)
            return self._facts(capsule, replay, failure)
        finally:
            self._keeper.restore(capsule)

    # -- running ---------------------------------------------------------------------------------------------------

    def _replay(
        self, capsule: StepCapsule, *, patch: CallPatch | None = None, saved: bool = False, free: bool = False, shaken: Place | None = None
    ) -> _Replay:
        """Rewinds and runs the step. `patch` is a remedy to try, `free` cuts tensors kept from earlier steps off their graph,
        `shaken` is a line whose exports are changed a little."""
        self._keeper.restore(capsule)
        batches = [to_device(batch, self._runner.device) for batch in capsule.batches]
        leaves = [
            *((f"param:{name}", parameter.detach()) for name, parameter in self._named if not is_lazy(parameter)),
            *((f"buffer:{name}", buffer) for name, buffer in self._model.named_buffers() if not is_lazy(buffer)),
            *(leaf for i, batch in enumerate(batches) for leaf in tensor_leaves(batch, f"batch[{i}]")),
        ]
        flow = FlowLog((name, parameter) for name, parameter in self._named if not is_lazy(parameter))
        tracer = Tracer(self._model, leaves, flow=flow)
        functions = FunctionWatch(tracer, flow, shaken)
        replay = _Replay(
            trace=tracer.finish(), flow=flow, losses=[], needs_grad=True, rewrapped=False, calls=[], with_gradient=set(), norms={},
            trainable={name: parameter.requires_grad for name, parameter in self._named}, error=None,
            custom=CustomNodes(), functions=functions,
            saved=SavedTensorWatch(tracer) if saved else None, kept=KeptTensors(self._runner.recipe),
        )  # fmt: skip
        assert replay.kept is not None
        if free:
            replay.kept.detach_all()

        def on_loss(loss: torch.Tensor) -> None:
            name = f"loss:{len(replay.losses)}"
            with torch._C.DisableTorchFunction():
                tracer.mark(name, loss)
                replay.losses.append(name)
                replay.needs_grad &= loss.requires_grad
                replay.rewrapped |= loss.requires_grad and loss.is_leaf
                own, caller = calling_places(2)
                place = caller or own
                replay.calls.append(resolve(*place) if place else None)
                replay.custom.watch(loss)

        grad_before = torch.is_grad_enabled()
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_eagerly())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # the run itself has shown the user's warnings
            stack.enter_context(replay.kept)
            stack.callback(replay.custom.remove)
            if replay.saved is not None:
                stack.enter_context(replay.saved)
            if patch is not None:
                stack.enter_context(patch)
            stack.enter_context(functions)
            stack.enter_context(tracer)
            try:
                if self._runner.observing:
                    self._observe(batches[0], on_loss, replay)
                else:
                    self._runner.compute(batches, on_loss)
            except UserCodeError as error:
                replay.error = error
            except UsageError:
                if not replay.losses:
                    raise
        torch.set_grad_enabled(grad_before)
        replay.trace = tracer.finish()
        self._note_gradients(replay)
        return replay

    def _observe(self, batch: Any, on_loss: Callable[[torch.Tensor], None], replay: _Replay) -> None:
        observer = Observer(self._runner.recipe, self._named, expected_steps=1).watch(None)
        observer.on_loss = on_loss
        observer.on_gradients = lambda: self._note_gradients(replay)
        with observer:
            result = self._runner.call_train_step(batch)
        if not observer.losses and isinstance(result, torch.Tensor) and result.numel() == 1:
            on_loss(result)

    def _note_gradients(self, replay: _Replay) -> None:
        """Which parameters have a gradient now; earlier ones of the same step count too."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            for name, parameter in self._named:
                grad = parameter.grad
                if grad is not None:
                    replay.with_gradient.add(name)
                    norm = float(torch.linalg.vector_norm(grad.detach().to_dense() if grad.layout != torch.strided else grad.detach()))
                    replay.norms[name] = max(norm, replay.norms.get(name, 0.0)) if norm == norm else norm

    # -- judging ---------------------------------------------------------------------------------------------------

    def _facts(self, capsule: StepCapsule, replay: _Replay, failure: UserCodeError | None) -> GraphFacts:
        flow = replay.flow
        gradient = GradFlow(replay.trace, flow, replay.losses)
        states = self._states(replay, gradient)
        if flow.maybe and flow.exports and any(state in (UNREACHED, CUT) for state in states.values()):
            self._prove(capsule, replay, gradient)
            gradient = GradFlow(replay.trace, flow, replay.losses)
            states = self._states(replay, gradient)
        orphans = self._mask(flow, [name for name, state in states.items() if state == CUT])
        cuts = self._cuts(replay, gradient, gradient.cuts(orphans), orphans)
        cuts += self._frozen_midway(replay, gradient)
        self.edges = module_edges(gradient, {index for cut in gradient.cuts(orphans) for index in cut.ops})
        lost = [name for name, state in states.items() if state == LOST]
        if lost:
            cuts += replay.custom.losing(replay.trace, dict(self._named), lost)
        facts = GraphFacts(
            step=capsule.step,
            parameters=tuple(self._parameters(states, replay)),
            cuts=tuple(cuts[:_MOST_CUTS]),
            flat=tuple(self._flat(replay, states)),
            losses=len(replay.losses),
            loss_needs_grad=replay.needs_grad,
            loss_rewrapped=replay.rewrapped,
            loss_site=self._loss_site(replay),
            grad_was_off=bool(flow.grad_off) and flow.grad_off[0] == 0 and not torch.is_grad_enabled(),
            carried=tuple(replay.kept.facts(replay.trace, gradient)) if replay.kept else (),
            backward_calls=tuple(replay.calls),
            overwrite=self._overwrite(replay),
            leaf_write=self._leaf_write(replay),
            mismatches=tuple(GradientMismatch(**one) for one in replay.custom.mismatches(replay.trace)),
            fresh_parameters=tuple(replay.kept.fresh) if replay.kept else (),
            failed_again=replay.error is not None,
            **self._second_backward(replay),
        )
        return self._tried(capsule, facts, replay)

    def _prove(self, capsule: StepCapsule, replay: _Replay, gradient: GradFlow) -> None:
        """Which numbers that went through Python came back, by experiment: each exporting line's values are changed a
        little in one replay, and the ops that then read other numbers depend on them."""
        flow, records = replay.flow, replay.trace.records
        wanted = self._mask(flow, [name for name in replay.trainable if name not in replay.with_gradient])
        sites: dict[Place, list[int]] = {}
        for index in flow.exports:
            place = records[index].place
            if place is not None and gradient.masks[0][index] & wanted:
                sites.setdefault(place, []).append(index)
        for place, indices in list(sites.items())[:_MOST_SITES]:
            other = self._replay(capsule, shaken=place)
            for index, numbers in flow.maybe.items():
                same_op = index < len(other.trace.records) and other.trace.records[index].info.name == records[index].info.name
                if same_op and index in other.flow.maybe and other.flow.maybe[index] != numbers:
                    flow.proven.setdefault(index, []).extend(i for i in indices if i < index)

    def _states(self, replay: _Replay, flow: GradFlow) -> dict[str, str]:
        states = {}
        bits = {name: bit for bit, name in enumerate(flow.flow.names) if name}
        late = replay.error is not None and replay.error.phase == "backward"
        for name, _ in self._named:
            if name not in bits:
                continue
            has = 1 << bits[name]
            if not replay.trainable[name]:
                states[name] = FROZEN
            elif name in replay.with_gradient:
                states[name] = ZERO if replay.norms.get(name) == 0 else GRADIENT
            elif flow.loss_gradients & has:
                # backward raised before all had arrived: what autograd could reach is all right
                states[name] = GRADIENT if late else LOST
            elif flow.loss_values & has:
                states[name] = CUT
            else:
                states[name] = UNREACHED if flow.used & has else UNUSED
        return states

    def _parameters(self, states: dict[str, str], replay: _Replay) -> Iterator[ParameterState]:
        owners = _owners(self._runner.recipe.optimizers)
        modules = dict(self._model.named_modules())
        shapes = {name: tuple(p.shape) for name, p in self._named if name in states}
        good = [name for name, state in states.items() if state in (GRADIENT, ZERO)]
        for name, parameter in self._named:
            if name not in states:
                continue
            module = name.rpartition(".")[0]
            yield ParameterState(
                name=name,
                module=module,
                module_type=type(modules[module]).__name__,
                shape=shapes[name],
                numel=parameter.numel(),
                state=states[name],
                norm=replay.norms.get(name),
                optimizers=tuple(owners.get(id(parameter), ())),
                twin=None if states[name] in (GRADIENT, FROZEN) else _twin(name, good, shapes),
            )

    def _mask(self, flow: FlowLog, names: list[str]) -> int:
        wanted = set(names)
        return sum(1 << bit for bit, name in enumerate(flow.names) if name and name in wanted)

    def _names(self, flow: FlowLog, mask: int) -> tuple[str, ...]:
        return tuple(name for bit, name in enumerate(flow.names) if name and mask >> bit & 1)

    def _cuts(self, replay: _Replay, gradient: GradFlow, cuts: list[Cut], orphans: int) -> list[CutFacts]:
        """One fact per line or region, chosen so that together they explain every orphan."""
        groups: dict[Any, list[Cut]] = {}
        for cut in cuts:
            groups.setdefault(self._site_key(replay, cut.index), []).append(cut)

        def rank(members: list[Cut]) -> tuple[int, bool, int]:
            mask = 0
            for cut in members:
                mask |= cut.orphans
            plain = plain_name(replay.trace.records[members[0].index].info.name) in ("detach", "alias")
            return (-mask.bit_count(), plain, members[0].index)

        found: list[CutFacts] = []
        left = orphans
        for members in sorted(groups.values(), key=rank):
            mask = 0
            for cut in members:
                mask |= cut.orphans
            if not mask & left:
                continue
            left &= ~mask
            first = next((cut for cut in members if not replay.trace.records[cut.index].info.view), members[0])
            kind, region = self._kind(replay, first)
            found.append(
                CutFacts(
                    op=replay.trace.facts(first.index),
                    kind=kind,
                    region_kind=region.kind if region else "",
                    region=_span(region.place) if region else None,
                    orphans=self._names(replay.flow, mask),
                )
            )
        return found

    def _site_key(self, replay: _Replay, index: int) -> Any:
        off = replay.flow.grad_off[index]
        if off > 0:
            region = replay.flow.regions[off]
            return ("region", region.place)
        if off == 0:
            return ("region", None)
        place = replay.trace.records[index].place
        return ("line", place[0], place[1]) if place else ("op", index)

    def _kind(self, replay: _Replay, cut: Cut) -> tuple[str, Any]:
        record, flow = replay.trace.records[cut.index], replay.flow
        name = plain_name(record.info.name)
        off = flow.grad_off[cut.index]
        if off >= 0:
            return "region", flow.regions[off]
        if name in ("detach", "alias"):
            if cut.reader is None:
                return "rewrapped", None
            if self._leaves_torch(replay, cut.index):
                return "numpy", None
            span = resolve(*record.place) if record.place else None
            return ("data" if span is not None and span.code.count(".data") else "detach"), None
        if record.info.name.startswith(("torch.", "Tensor.")):
            kinds = {"tolist": "item", "numpy": "numpy", "__array__": "numpy", "array": "numpy"}
            return ("item" if name in ("item", "float", "int", "index") else kinds.get(name, "rebuilt")), None
        if name == "local_scalar_dense":
            return "item", None
        if name in _COMPARISONS:
            return "comparison", None
        if name in ("to_copy", "to", "long", "int"):
            return "integer", None
        if record.info.writes:
            return "in-place", None
        return "no-derivative", None

    def _leaves_torch(self, replay: _Replay, index: int) -> bool:
        """A detached tensor that is next handed to NumPy: the detach is only there to allow it."""
        for _ in range(3):
            readers = replay.trace.readers_of(index, replay.flow.sources)
            if any(replay.trace.records[reader].info.name in ("Tensor.numpy", "Tensor.__array__") for reader in readers):
                return True
            if len(readers) != 1:
                return False
            index = readers[0]
        return False

    def _frozen_midway(self, replay: _Replay, gradient: GradFlow) -> list[CutFacts]:
        """Parameters that were trainable when the step began and were frozen by a call inside it."""
        by_place: dict[Any, list[str]] = {}
        for bit, place in replay.flow.frozen_at.items():
            name = replay.flow.names[bit]
            if place is not None and name and replay.trainable.get(name) and name not in replay.with_gradient:
                by_place.setdefault(place, []).append(name)
        found = []
        for place, names in by_place.items():
            facts = OpFacts(index=0, op="Tensor.requires_grad_", phase="forward", module=None, module_type=None, location=resolve(*place))
            found.append(CutFacts(op=facts, kind="frozen-midway", orphans=tuple(names)))
        return found

    def _flat(self, replay: _Replay, states: dict[str, str]) -> list[CutFacts]:
        zero = [name for name, state in states.items() if state == ZERO]
        if not zero:
            return []
        flow = GradFlow(replay.trace, replay.flow, replay.losses, flat=True)
        cut_off = self._mask(replay.flow, zero) & ~flow.loss_gradients
        found = []
        for cut in flow.cuts(cut_off):
            if flow._ends(cut.index):
                orphans = self._names(replay.flow, cut.orphans)
                found.append(CutFacts(op=replay.trace.facts(cut.index), kind="flat", orphans=orphans))
        return found

    def _loss_site(self, replay: _Replay) -> OpFacts | None:
        for name in replay.losses[-1:]:
            producer = replay.flow.marks[name].producer
            if producer is not None and producer >= 0:
                return replay.trace.facts(producer)
        return None

    # -- in-place writes and second backwards ------------------------------------------------------------------------

    def _overwrite(self, replay: _Replay) -> OverwriteFacts | None:
        if replay.saved is None or replay.saved.found is None:
            return None
        return _overwrite_facts(replay.saved.found, replay.trace)

    def _leaf_write(self, replay: _Replay) -> str | None:
        failing = replay.functions.failing
        if replay.error is None or failing is None or not failing[1]:
            return None
        target = failing[1][0]
        for candidate in (target, target._base):
            for name, parameter in self._named:
                if candidate is parameter:
                    return name
        return None

    def _second_backward(self, replay: _Replay) -> dict[str, Any]:
        """With two backward calls: what the first loss used of the graph that the second needs."""
        if len(replay.losses) < 2:
            return {}
        flow, trace = replay.flow, replay.trace
        marks = [flow.marks[name] for name in replay.losses]
        if marks[0].producer == marks[-1].producer:
            return {"same_loss": True}
        first = GradFlow(trace, flow, replay.losses[:1]).live
        second = GradFlow(trace, flow, replay.losses[-1:]).live
        for index in sorted(first - second):
            for source in flow.sources[index]:
                if source.carries and source.producer is not None and source.producer in second:
                    return {"shared_reader": trace.facts(index)}
        return {}

    # -- remedies --------------------------------------------------------------------------------------------------

    def _tried(self, capsule: StepCapsule, facts: GraphFacts, replay: _Replay) -> GraphFacts:
        """Tries what could mend each cut by replay: verified if every orphan then gets its gradient."""
        verified: list[tuple[str, str]] = []
        refuted: list[tuple[str, str]] = []
        for cut in facts.cuts:
            for kind, place in self._candidates(cut, replay):
                patch = CallPatch(kind, place)
                again = self._replay(capsule, patch=patch)
                if not patch.applied:
                    continue
                ok = again.error is None and set(cut.orphans) <= again.with_gradient
                if not ok and replay.rewrapped:
                    break  # with the loss wrapped anew no change further up can help alone
                (verified if ok else refuted).append((fix_key(cut.op.location, cut.region), kind))
                if ok:
                    break
        if facts.overwrite is not None and facts.overwrite.overwritten_by is not None:
            index = facts.overwrite.overwritten_by.index
            patch = CallPatch("out-of-place", replay.trace.records[index].place)
            again = self._replay(capsule, patch=patch)
            if patch.applied:
                key = fix_key(facts.overwrite.overwritten_by.location, None)
                (verified if again.error is None else refuted).append((key, "out-of-place"))
        if facts.carried and facts.failed_again:
            again = self._replay(capsule, free=True)
            (verified if again.error is None else refuted).append(("carried", "detach"))
        return replace(facts, verified=tuple(verified), refuted=tuple(refuted)) if verified or refuted else facts

    def _candidates(self, cut: CutFacts, replay: _Replay) -> Iterator[tuple[str, Any]]:
        record = replay.trace.records[cut.op.index] if cut.kind != "custom-function" else None
        place = record.place if record is not None else None
        if cut.kind in ("detach", "data", "rewrapped"):
            yield "attached", place
        elif cut.kind == "rebuilt":
            yield "stack", place
            yield "cat", place
        elif cut.kind == "region" and cut.region_kind in ("no_grad", "set_grad_enabled"):
            yield "grad-on", replay.flow.regions[replay.flow.grad_off[cut.op.index]].place
        elif cut.kind == "frozen-midway":
            for frozen in replay.flow.frozen_at.values():
                if frozen is not None and resolve(*frozen) == cut.op.location:
                    yield "unfrozen", frozen
                    return


def _overwrite_facts(found: Overwritten, trace: StepTrace) -> OverwriteFacts:
    saved = next((i for i, r in enumerate(trace.records) if r.phase in ("forward", "recompute") and r.sequence == found.sequence), None)
    after = saved if saved is not None else found.count
    writers = [index for index in found.writers if index > after] or [index for index in found.writers if index >= found.count]
    writer = writers[0] if writers else None
    call: Place | None = None
    if writer is not None and trace.records[writer].phase == "optimizer":
        call = next((place for start, place in reversed(trace.optimizer_calls) if start <= writer), None)
    return OverwriteFacts(
        saved_by=trace.facts(saved) if saved is not None else None,
        overwritten_by=trace.facts(writer) if writer is not None else None,
        shape=found.shape,
        optimizer_call=resolve(*call) if call else None,
        leaf=found.leaf,
    )


def _owners(optimizers: list[torch.optim.Optimizer]) -> dict[int, list[int]]:
    owners: dict[int, list[int]] = {}
    for position, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owners.setdefault(id(parameter), []).append(position)
    return owners


def _twin(name: str, good: list[str], shapes: dict[str, tuple[int, ...]]) -> str | None:
    """A parameter with a gradient whose path differs in one component and whose shape is the same."""
    parts = name.split(".")
    for other in good:
        theirs = other.split(".")
        if len(theirs) == len(parts) and shapes[other] == shapes[name] and sum(a != b for a, b in zip(parts, theirs, strict=True)) == 1:
            return other
    return None


def _span(place: Any) -> SourceSpan | None:
    if place is None or isinstance(place, SourceSpan):
        return place
    span = resolve(*place)
    if span is not None and span.code.startswith("with ") and span.end_line > span.line:  # the statement's head, not its body
        head = span.code.split("\n")[0]
        span = replace(span, end_line=span.line, end_column=span.indent + len(head) + 1, code=head)
    return span
