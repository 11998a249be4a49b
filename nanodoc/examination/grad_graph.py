"""Rewind a step, run it again with its gradient flow followed, and say which parameters get no
gradient and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.cuts import CutReader
from nanodoc.examination.followed_step import FollowedStep
from nanodoc.examination.grad_graph_fixes import CallPatch, rebinds
from nanodoc.examination.saved_tensors import Overwritten
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.graph import (
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
    graph_failure,
)
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.trace.cuts import GradFlow, module_edges
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.spans import Place, resolve, resolved
from nanodoc.trace.statements import written_at

_MOST_CUTS = 6  # told of one step
_MOST_SITES = 4  # exporting lines tried one by one, each a replay


class GraphExaminer:
    """Examines the autograd graph of single steps. Model and optimizers are left as they were."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper) -> None:
        self._runner = runner
        self._keeper = keeper
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())
        self.edges: tuple[ModuleEdge, ...] = ()
        """The module-level picture of the last step examined."""
        self.initial: dict[str, tuple[float, float]] = {}
        """Fingerprints of the parameters before the first step, where they were taken."""
        self.ranges: tuple[RangeFacts, ...] = ()
        """Indices and labels out of range that a device was kept from."""

    def keeper_of(self, capsule: StepState, name: str) -> SourceSpan | None:
        """The line of the step that keeps a tensor with its graph under `name`."""
        with self._keeper.rewound(capsule):
            replay = self._replay(capsule)
            where = replay.kept.kept_at(name, replay.trace, replay.flow)
        # what a script's iteration does behind its last optimizer step is not run again
        loop = getattr(self._runner.recipe.train_step, "loop", None)
        if where is None and loop is not None:
            function = loop.function.name if loop.function is not None else "<module>"
            return written_at(loop.file, range(loop.first, loop.last + 1), name, function)
        return where

    def examine(self, capsule: StepState, failure: UserCodeError | None = None) -> GraphFacts:
        """The facts of one step. `failure` is what the step raised when it first ran."""
        overwritten = failure is not None and graph_failure(str(failure.cause)) == "overwritten"
        with self._keeper.rewound(capsule):
            replay = self._replay(capsule, saved=overwritten, freed=failure is not None)
            return self._facts(capsule, replay)

    def judge(self, capsule: StepState, step: FollowedStep) -> GraphFacts:
        """The facts of a step that was followed while it ran. What has to be tried is tried by
        replay."""
        with self._keeper.rewound(capsule):
            return self._facts(capsule, step)

    # -- running -----------------------------------------------------------------------------------

    def _replay(
        self,
        capsule: StepState,
        *,
        patch: CallPatch | None = None,
        saved: bool = False,
        freed: bool = False,
        free: bool = False,
        shaken: Place | None = None,
    ) -> FollowedStep:
        """Rewinds and runs the step. `patch` is a remedy to try, `freed` looks for kept tensors
        whose graph is gone, `free` cuts kept tensors off their graph, `shaken` is a line whose
        exports are changed a little."""
        self._keeper.restore(capsule)
        batches = [self._runner.moved(batch) for batch in capsule.batches]
        # on a device that would be lost to them, indices out of range are seen first
        step = FollowedStep(
            self._runner.recipe,
            batches,
            saved=saved,
            shaken=shaken,
            ranges=self._runner.device.type != "cpu",
        )
        if freed:
            list(step.kept.freed())
        try:
            with step.kept.detached(free), step.watching(patch):
                run_step(
                    self._runner,
                    batches,
                    on_loss=step.on_loss,
                    on_gradients=step.note_gradients,
                )
        except UserCodeError as error:
            step.error = error
        except UsageError:
            if not step.losses:
                raise
        self.ranges = self.ranges or tuple(step.functions.ranges)
        step.note_gradients()
        return step

    # -- judging -----------------------------------------------------------------------------------

    def _facts(self, capsule: StepState, replay: FollowedStep) -> GraphFacts:
        flow = replay.flow
        gradient = GradFlow(replay.trace, flow, replay.losses)
        states = self._states(replay, gradient)
        idle = any(state in (UNREACHED, CUT) for state in states.values())
        if flow.maybe and flow.exports and (idle or gradient.adds_numbers(flow.maybe)):
            self._prove(capsule, replay, gradient)
            gradient = GradFlow(replay.trace, flow, replay.losses)
            states = self._states(replay, gradient)
        reader = CutReader(replay, gradient)
        orphans = reader.mask({name for name, state in states.items() if state == CUT})
        cuts = [*reader.cuts(orphans), *reader.frozen_midway(), *reader.inference()]
        self.edges = module_edges(gradient, {cut.index for cut in gradient.cuts(orphans)})
        lost = [name for name, state in states.items() if state == LOST]
        if lost:
            cuts += replay.custom.losing(replay.trace, dict(self._named), lost)
        facts = GraphFacts(
            step=capsule.step,
            parameters=tuple(self._parameters(states, replay)),
            cuts=tuple(cuts[:_MOST_CUTS]),
            flat=tuple(
                reader.flat(reader.mask({name for name, state in states.items() if state == ZERO}))
            ),
            dead_terms=tuple(reader.dead_terms()),
            losses=len(replay.losses),
            loss_needs_grad=replay.needs_grad,
            loss_rewrapped=replay.rewrapped,
            loss_site=self._loss_site(replay),
            carried=tuple(replay.kept.facts(replay.trace, gradient)),
            backward_calls=tuple(replay.calls),
            overwrite=self._overwrite(replay),
            leaf_write=self._leaf_write(replay),
            mismatches=tuple(
                GradientMismatch(**mismatch) for mismatch in replay.custom.mismatches(replay.trace)
            ),
            fresh_parameters=tuple(replay.kept.fresh),
            failed_again=replay.error is not None,
            **self._second_backward(replay),
        )
        return self._tried(capsule, facts, replay)

    def _prove(self, capsule: StepState, replay: FollowedStep, gradient: GradFlow) -> None:
        """Which numbers that went through Python came back, by experiment: each exporting line's
        values are changed a little in one replay, and the ops that then read other numbers depend
        on them."""
        flow, records = replay.flow, replay.trace.records
        wanted = CutReader(replay, gradient).mask(set(replay.trainable))
        sites: dict[Place, list[int]] = {}
        for index in flow.exports:
            place = records[index].place
            if place is not None and gradient.masks[0][index] & wanted:
                sites.setdefault(place, []).append(index)
        for place, indices in list(sites.items())[:_MOST_SITES]:
            other = self._replay(capsule, shaken=place)
            for index, numbers in flow.maybe.items():
                same_op = (
                    index < len(other.trace.records)
                    and other.trace.records[index].info.name == records[index].info.name
                )
                if same_op and index in other.flow.maybe and other.flow.maybe[index] != numbers:
                    flow.proven.setdefault(index, []).extend(i for i in indices if i < index)

    def _states(self, replay: FollowedStep, flow: GradFlow) -> dict[str, str]:
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

    def _parameters(self, states: dict[str, str], replay: FollowedStep) -> Iterator[ParameterState]:
        owners = _owners(self._runner.recipe.optimizers)
        modules = dict(self._model.named_modules())
        shapes = {name: tuple(p.shape) for name, p in self._named if name in states}
        good = [name for name, state in states.items() if state in (GRADIENT, ZERO)]
        siblings = {key: name for name in good for key in _slots(name, shapes[name])}
        starts = {self._start(name, shapes[name]) for name in good} - {None}
        for name, parameter in self._named:
            if name not in states:
                continue
            module = name.rpartition(".")[0]
            yield ParameterState(
                name=name,
                module=module,
                module_type=type(modules[module]).__name__ if module in modules else "",
                shape=shapes[name],
                numel=parameter.numel(),
                state=states[name],
                norm=replay.norms.get(name),
                optimizers=tuple(owners.get(id(parameter), ())),
                twin=next(
                    (siblings[key] for key in _slots(name, shapes[name]) if key in siblings), None
                )
                if name not in good
                else None,
                copied=name not in good and self._start(name, shapes[name]) in starts,
            )

    def _start(self, name: str, shape: tuple[int, ...]) -> tuple[Any, ...] | None:
        """What a copy of a module has in common with it when training begins: the parameter's own
        name, shape and values."""
        values = self.initial.get(name)
        return (name.rpartition(".")[2], shape, values) if values is not None else None

    def _loss_site(self, replay: FollowedStep) -> OpFacts | None:
        for name in replay.losses[-1:]:
            producer = replay.flow.marks[name].producer
            if producer is not None and producer >= 0:
                return replay.trace.facts(producer)
        return None

    # -- in-place writes and second backwards ------------------------------------------------------

    def _overwrite(self, replay: FollowedStep) -> OverwriteFacts | None:
        if replay.saved is None or replay.saved.found is None:
            return None
        return _overwrite_facts(replay.saved.found, replay.trace)

    def _leaf_write(self, replay: FollowedStep) -> str | None:
        failing = replay.functions.failing
        if replay.error is None or failing is None or not failing[1]:
            return None
        target = failing[1][0]
        for candidate in (target, target._base):
            for name, parameter in self._named:
                if candidate is parameter:
                    return name
        return None

    def _second_backward(self, replay: FollowedStep) -> dict[str, Any]:
        """With several backward calls: what an earlier loss used of the graph that the last needs,
        and which of them it was."""
        if len(replay.losses) < 2:
            return {}
        flow, trace = replay.flow, replay.trace
        marks = [flow.marks[name] for name in replay.losses]
        if marks[0].producer == marks[-1].producer:
            return {"same_loss": True}
        last = GradFlow(trace, flow, replay.losses[-1:]).live
        for number, name in enumerate(replay.losses[:-1]):
            earlier = GradFlow(trace, flow, [name]).live
            for index in sorted(earlier - last):
                for source in flow.sources[index]:
                    if source.carries and source.producer is not None and source.producer in last:
                        given = trace.given_at(index, source.producer)
                        reader = {"shared_reader": trace.facts(index), "shared_given_at": given}
                        return {**reader, "freed_by": number}
        return {}

    # -- remedies ----------------------------------------------------------------------------------

    def _tried(self, capsule: StepState, facts: GraphFacts, replay: FollowedStep) -> GraphFacts:
        """Tries what could mend each cut by replay: verified if every orphan then gets its
        gradient."""
        verified: list[tuple[str, str]] = []
        refuted: list[tuple[str, str]] = []
        raised: list[tuple[str, str, str]] = []
        for cut in facts.cuts:
            for kind, place in self._candidates(cut, replay):
                patch = CallPatch(kind, place)
                again = self._replay(capsule, patch=patch)
                if not patch.applied:
                    continue
                ok = again.error is None and set(cut.orphans) <= again.with_gradient
                if not ok and replay.rewrapped:
                    break  # with the loss wrapped anew no change further up can help alone
                key = fix_key(cut.op.location, cut.region)
                (verified if ok else refuted).append((key, kind))
                if again.error is not None:
                    raised.append((key, kind, type(again.error.cause).__name__))
                if ok:
                    break
        if (
            facts.overwrite is not None
            and facts.overwrite.overwritten_by is not None
            and rebinds(facts.overwrite.overwritten_by.location)
        ):
            index = facts.overwrite.overwritten_by.index
            patch = CallPatch("out-of-place", replay.trace.records[index].place)
            again = self._replay(capsule, patch=patch)
            if patch.applied:
                key = fix_key(facts.overwrite.overwritten_by.location, None)
                (verified if again.error is None else refuted).append((key, "out-of-place"))
        if facts.carried and facts.failed_again:
            again = self._replay(capsule, free=True)
            (verified if again.error is None else refuted).append(("carried", "detach"))
        return (
            replace(facts, verified=tuple(verified), refuted=tuple(refuted), raised=tuple(raised))
            if verified or refuted
            else facts
        )

    def _candidates(self, cut: CutFacts, replay: FollowedStep) -> Iterator[tuple[str, Any]]:
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
            for bit, frozen in replay.flow.frozen_at.items():
                by = replay.flow.frozen_by.get(bit, frozen)
                if frozen is not None and by is not None and resolve(*by) == cut.op.location:
                    yield "unfrozen", frozen
                    return


def _overwrite_facts(found: Overwritten, trace: StepTrace) -> OverwriteFacts:
    saved = next(
        (
            i
            for i, r in enumerate(trace.records)
            if r.phase in ("forward", "recompute") and r.sequence == found.sequence
        ),
        None,
    )
    after = saved if saved is not None else found.count
    writers = [index for index in found.writers if index > after] or [
        index for index in found.writers if index >= found.count
    ]
    writer = writers[0] if writers else None
    call: Place | None = None
    if writer is not None and trace.records[writer].phase == "optimizer":
        call = next(
            (place for start, place in reversed(trace.optimizer_calls) if start <= writer), None
        )
    return OverwriteFacts(
        saved_by=trace.facts(saved) if saved is not None else None,
        overwritten_by=trace.facts(writer) if writer is not None else None,
        shape=found.shape,
        optimizer_call=resolved(call),
        leaf=found.leaf,
    )


def _owners(optimizers: list[torch.optim.Optimizer]) -> dict[int, list[int]]:
    owners: dict[int, list[int]] = {}
    for position, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owners.setdefault(id(parameter), []).append(position)
    return owners


def _slots(name: str, shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """The path with each of its components left out in turn: siblings share one of these."""
    parts = tuple(name.split("."))
    for i in range(len(parts)):
        yield i, parts[:i], parts[i + 1 :], shape
