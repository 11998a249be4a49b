"""Rewind a sick step, run it again under the tracer, and gather the evidence the rules judge.

Four replays of one step at the most: the first screens every op, the second looks exactly at the
slice between symptom and cause, the third at the roots, the fourth at the elements where they
failed. Each is one traced step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from nanodoc.examination.replays import Replays
from nanodoc.examination.reproduction import reproduced, same_ops
from nanodoc.examination.symptoms import late_symptoms, loss_is_finite_in, sent_by, symptoms
from nanodoc.facts.ops import RECEIVED, Birth, LeafRoot, OpFacts, TensorFacts
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import batch_size, tensor_leaves
from nanodoc.tensors.samples import samples_of
from nanodoc.trace.births import Root, RootSearch
from nanodoc.trace.collectives import is_received
from nanodoc.trace.examine import Request, tensor_facts
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.growth import amplifier_of, growth_of
from nanodoc.trace.masking import find_mask, gradient_request
from nanodoc.trace.record import Ref

_MOST_ROOTS = 8
_UPSTREAM = 16
_JUST_BEFORE = 2
_CHAIN = 8
_MOST_SAMPLES = 64
_FARTHEST = 64  # ancestors of an overflow, so that the way its values grew can be told


@dataclass(frozen=True, slots=True)
class Examined:
    """What an examination established. `reproduced` is "bitwise", "tolerance" or "no"; of a step
    that can't be run again "as_it_ran" where it was traced, else "not_run"."""

    births: tuple[Birth, ...]
    leaves: tuple[LeafRoot, ...]
    reproduced: str
    note: str = ""


class Examiner:
    """Examines steps of one recipe. The model is left as the capsule says, not as the replay left
    it."""

    def __init__(self, replayer: Replays) -> None:
        self._replayer = replayer

    # -- examining ---------------------------------------------------------------------------------

    def examine(
        self,
        capsule: StepState,
        loss: float | None,
        grad_norm: float | None,
        indices: Sequence[int] | None = None,
    ) -> Examined:
        """The roots of a step's non-finite loss or gradients, or of the NaN behind an exception.

        `loss` and `grad_norm` are what the first run read (None after an exception); `indices` the
        data set's indices of the batch, where known.
        """
        self._replayer.complete(capsule)
        try:
            return self._examine(capsule, loss, grad_norm, indices)
        finally:
            self._replayer.rewind(capsule)

    def _examine(
        self,
        capsule: StepState,
        loss: float | None,
        grad_norm: float | None,
        indices: Sequence[int] | None,
    ) -> Examined:
        first = self._replayer.replay(capsule)
        # a train_step may have cleared or clipped what is read of its gradients
        norm = None if self._replayer.observing else grad_norm
        met, note = reproduced(first, loss, norm) if self._replayer.repeats else ("as_it_ran", "")
        if capsule.batch_was_mutated:
            note = "the step modifies its batch in place, so the replay started from different data"
        loss_is_finite = loss_is_finite_in(first)
        starts, sent = symptoms(first, loss_is_finite), sent_by(first, loss_is_finite)
        if not starts and not sent:
            # a loss that is met proves nothing of gradients that were not finite
            lost = loss_is_finite and grad_norm is not None and not math.isfinite(grad_norm)
            return Examined((), (), "no" if lost else met, note)
        coarse = first.trace.coarse_slice([*starts, *sent])
        wanted = set(coarse)
        wanted.update(f for i in coarse if (f := first.trace.forward_of(i)) is not None)
        second = self._replayer.replay(capsule, {index: Request() for index in wanted}).trace
        if not same_ops(first.trace, second, wanted):
            return Examined((), (), "no", "the re-run executed different ops")
        search = RootSearch(second, loss_is_finite=loss_is_finite)
        if first.error is None:
            starts = [
                second.marks[name] for name, ref in first.trace.marks.items() if ref in starts
            ]
        else:
            starts = search.alarming(late_symptoms(second))
        roots = _roots(search, second, starts, sent)
        sites = {root.index: _site(second, root) for root in roots}
        requests = {
            index: Request(locate=True)
            for root in roots
            for index in self._around(second, root, sites[root.index])
        }
        third = self._replayer.replay(capsule, requests).trace
        fourth, masks = (
            self._fourth(capsule, third, roots, sites) if self._replayer.repeats else (third, {})
        )
        size = batch_size(capsule.batches[0]) if capsule.batches else None
        births, leaves = [], []
        for root in roots:
            if root.leaf is not None:
                leaves.append(self._leaf(third, root, capsule, indices))
            else:
                births.append(
                    self._birth(
                        third, fourth, root, sites[root.index], masks.get(root.index), size, indices
                    )
                )
        return Examined(tuple(births), tuple(leaves), met, note)

    def ops_of_slice(self, capsule: StepState) -> tuple[OpFacts, ...]:
        """The ops from those right before a step's first non-finite values to its symptom, in the
        order in which they ran; () for a healthy step."""
        first = self._replayer.replay(capsule)
        starts = symptoms(first, loss_is_finite_in(first))
        coarse = first.trace.coarse_slice(starts) if starts else []
        before = {
            i
            for index in coarse
            for ref in first.trace.records[index].inputs
            for i in first.trace.ancestors(ref, _JUST_BEFORE)
        }
        wanted = sorted({*coarse, *before})
        trace = self._replayer.replay(capsule, {index: Request() for index in wanted}).trace
        return tuple(trace.facts(index) for index in wanted if index in trace.details)

    def stop_at_birth(self, capsule: StepState, birth: Birth, reached: Callable[[], None]) -> None:
        """Runs the step once more and calls `reached` when the op that is to blame has run."""
        self._replayer.replay(capsule, {birth.site.index: Request(on_reached=reached)})

    def _around(self, trace: StepTrace, root: Root, site: int) -> set[int]:
        """The ops worth a close look for one root: itself, its forward op, what led there and where
        it went."""
        around = {root.index, site, *_sampled(root.trail)}
        around.update(trace.node_group(root.index) if trace.records[root.index].node else [])
        for ref in trace.records[site].inputs:
            around.update(trace.ancestors(ref, _FARTHEST if root.kind == "inf" else _UPSTREAM))
        overflows = root.kind == "inf" and root.index != site
        if root.saved_nonfinite or root.inf_inputs or overflows:
            around.update(
                i
                for ref in trace.records[root.index].inputs
                for i in trace.ancestors(ref, _FARTHEST if overflows else _UPSTREAM)
            )
        return around

    def _fourth(
        self, capsule: StepState, third: StepTrace, roots: list[Root], sites: dict[int, int]
    ) -> tuple[StepTrace, dict[int, Any]]:
        """Looks at single elements: which gradient reached the bad ones, and whether forward had
        masked them."""
        requests: dict[int, Request] = {}
        masks: dict[int, Any] = {}
        for root in roots:
            if third.records[root.index].phase != "backward" or root.leaf is not None:
                continue
            detail = third.details.get(root.index)
            if detail is None or detail.bad is None:
                continue
            positions = detail.bad
            bad = sum(facts.nonfinite for facts in detail.outputs)
            mask = find_mask(third, sites[root.index], positions, bad, requests)
            gradient = gradient_request(third, root.index, positions, requests)
            masks[root.index] = (mask, gradient)
        return (self._replayer.replay(capsule, requests).trace if requests else third), masks

    # -- evidence ----------------------------------------------------------------------------------

    def _birth(
        self,
        trace: StepTrace,
        fourth: StepTrace,
        root: Root,
        site: int,
        looked: Any,
        size: int | None,
        indices: Sequence[int] | None,
    ) -> Birth:
        op = trace.facts(root.index)
        backward = trace.records[root.index].phase == "backward"
        zero_gradient, masked_by = False, None
        if looked is not None:
            mask, gradient = looked
            zero_gradient = gradient is not None and gradient.all_zero(fourth)
            masked_by = mask.op(fourth) if mask is not None else None
        samples = () if _of_weights_alone(trace, site) else self._samples(trace, root, size)
        return Birth(
            op=op,
            kind=root.kind,
            phase="backward"
            if backward
            else "forward"
            if trace.records[root.index].phase == "recompute"
            else trace.records[root.index].phase,
            forward=trace.facts(site) if site != root.index else None,
            upstream=tuple(trace.facts(i) for i in _upstream(trace, site)),
            chain=tuple(trace.facts(i) for i in _sampled(root.trail)[::-1]),
            source=self._saved_source(trace, root) if root.saved_nonfinite else None,
            saved_nonfinite=root.saved_nonfinite,
            masked_by=masked_by,
            zero_gradient=zero_gradient,
            growth=growth_of(trace, site) if not backward else (),
            amplified=amplifier_of(trace, root.index),
            inf_inputs=tuple(
                trace.source_name(trace.records[root.index].inputs[i]) for i in root.inf_inputs
            ),
            samples=samples,
            dataset_indices=_dataset(samples, indices),
        )

    def _saved_source(self, trace: StepTrace, root: Root) -> LeafRoot | None:
        """The batch leaf a saved non-finite value was, if it was one."""
        record, detail = trace.records[root.index], trace.details.get(root.index)
        for position in root.saved_inputs:
            last = next(trace.writers(record.inputs[position]), None)
            if last is not None and last < 0 and detail is not None:
                name = trace.leaf_name(last)
                return LeafRoot(
                    kind=_leaf_kind(name),
                    name=name.removeprefix("param:").removeprefix("buffer:"),
                    facts=detail.inputs[position],
                )
        return None

    def _leaf(
        self, trace: StepTrace, root: Root, capsule: StepState, indices: Sequence[int] | None
    ) -> LeafRoot:
        name = root.leaf or "constant"
        kind = _leaf_kind(name)
        consumer = trace.facts(root.index)
        facts = (
            consumer.inputs[root.input_position]
            if root.input_position < len(consumer.inputs)
            else _unknown(name)
        )
        samples: tuple[int, ...] = ()
        first = 0
        for batch, path in _paths(capsule.batches) if kind == "batch" else ():
            tensor = dict(tensor_leaves(batch, path)).get(name)
            alone = indices is not None and len(capsule.batches) == 1
            count = len(indices) if indices and alone else batch_size(batch) or 0
            if tensor is not None and tensor.dim() >= 1:
                facts = tensor_facts(tensor, name)
                bad = (~torch.isfinite(tensor)).reshape(tensor.shape[0], -1).any(1)
                rows = bad.nonzero().flatten()[:_MOST_SAMPLES].tolist()
                samples = tuple(samples_of(rows, tensor, batch, count))
                break
            first += count
        return LeafRoot(
            kind=kind,
            name=name.removeprefix("param:").removeprefix("buffer:"),
            facts=facts,
            consumer=consumer,
            samples=samples,
            dataset_indices=_dataset([first + sample for sample in samples], indices),
            chain=tuple(trace.facts(i) for i in _sampled(root.trail)[::-1]),
        )

    def _samples(self, trace: StepTrace, root: Root, size: int | None) -> tuple[int, ...]:
        """Rows of the batch that went bad: at the root, or at the first op downstream whose rows
        are the batch's."""
        if size is None or size < 2:
            return ()
        for index in [root.index, *root.trail[::-1]]:
            detail = trace.details.get(index)
            if detail is None or detail.bad is None or not detail.bad.shape:
                continue
            rows, first = detail.bad_rows, detail.bad.shape[0]
            if first == size and len(rows) < size:
                return rows[:_MOST_SAMPLES]
            if first == size:
                return ()  # every sample is bad: none is guilty alone
        return ()


# -- helpers ---------------------------------------------------------------------------------------


def _site(trace: StepTrace, root: Root) -> int:
    """The forward op to blame for a root: the one that made what backward found saved, the root
    itself, or the op whose derivative it computes."""
    index = root.index
    if root.origin is not None:
        return root.origin
    if trace.records[index].phase != "backward":
        return index
    forward = trace.forward_of(index)
    return index if forward is None or trace.records[index].place is not None else forward


def _roots(search: RootSearch, trace: StepTrace, starts: list[Ref], sent: list[Ref]) -> list[Root]:
    """Those behind the symptoms; where all of it came from other ranks, those behind what this rank
    sent: it may hold none of the gradients that its own backward pass made sick."""
    roots = search.from_refs(starts)[:_MOST_ROOTS]
    if sent and all(root.leaf is None and is_received(trace, root.index) for root in roots):
        return search.from_refs(search.alarming(sent))[:_MOST_ROOTS] or roots
    return roots


def _of_weights_alone(trace: StepTrace, site: int) -> bool:
    """What an op reads was made of the model's own tensors: its rows are no samples. False where
    there is more behind it than is looked at."""
    seen = {site}
    for index in (queue := [site]):
        record = trace.records[index]
        if not record.inputs or len(queue) > _FARTHEST:
            return False
        for ref in record.inputs:
            for writer in trace.writers(ref):
                if writer < 0 and not trace.leaf_name(writer).startswith(("param:", "buffer:")):
                    return False
                if writer >= 0 and writer not in seen:
                    seen.add(writer)
                    queue.append(writer)
    return True


def _upstream(trace: StepTrace, site: int) -> list[int]:
    """The nearest ancestors of an op, those of its inputs by turns: the divisor's are as near as
    the dividend's."""
    lines = [trace.ancestors(ref, _UPSTREAM) for ref in trace.records[site].inputs]
    turns = [index for turn in zip_longest(*lines) for index in turn if index is not None]
    return list(dict.fromkeys(turns))


def _sampled(trail: list[int]) -> list[int]:
    """At most `_CHAIN` ops of a trail (symptom first): the ends, and the nearest to the root."""
    return trail if len(trail) <= _CHAIN else [trail[0], *trail[-(_CHAIN - 1) :]]


def _paths(batches: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Each of the step's batches, with the path that its leaves begin with."""
    for number, batch in enumerate(batches):
        yield batch, "batch" if len(batches) == 1 else f"batch[{number}]"


def _dataset(samples: Sequence[int], indices: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(indices[s] for s in samples if s < len(indices)) if indices else ()


def _leaf_kind(name: str) -> str:
    if name.startswith("param:"):
        return "parameter"
    if name.startswith("buffer:"):
        return "buffer"
    if name.startswith("batch"):
        return "batch"
    return name if name in ("uninitialised", RECEIVED) else "unknown"


def _unknown(name: str) -> TensorFacts:
    return TensorFacts(
        label=name,
        dtype="",
        shape=(),
        numel=0,
        minimum=None,
        maximum=None,
        nan=0,
        posinf=0,
        neginf=0,
        zeros=0,
    )
