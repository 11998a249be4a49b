"""The data-flow graph of one traced step, and the walks over it.

An edge goes from an op to the ops that wrote the memory it read. Memory is followed by storage, so
views need no edges of their own, and in-place writes are further writers of the same storage.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from nanodoc.facts.ops import OpFacts, TensorFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.ops import is_exchange
from nanodoc.trace.spans import Place, resolve, resolved

if TYPE_CHECKING:
    from nanodoc.trace.examine import OpDetail
    from nanodoc.trace.flow import Source
    from nanodoc.trace.record import Record, Ref
    from nanodoc.trace.scripted import ScriptedLines


class StepTrace:
    """The records of one step in the order they ran; `bad[i]` says that op i wrote something
    non-finite (screened)."""

    def __init__(
        self,
        records: list[Record],
        bad: list[bool],
        marks: dict[str, Ref],
        leaf_names: list[str],
        modules: list[tuple[str, str]],
        details: dict[int, OpDetail],
        optimizer_calls: list[tuple[int, Place | None]] | None = None,
    ) -> None:
        self.records = records
        self.bad = bad
        self.marks = marks
        self.leaf_names = leaf_names
        self.modules = modules
        self.details = details
        self.optimizer_calls = optimizer_calls or []
        """Where each `Optimizer.step` was called, and how many ops had been recorded by then."""
        self.scripted: dict[int, ScriptedLines] = {}
        """The lines of TorchScript modules, by the module's index."""
        self.module_calls: list[tuple[int, int, Place]] = []
        """(the first op of a module's call outside of any other, the one behind its last, the line
        that made the call)"""

    # -- edges -------------------------------------------------------------------------------------

    def writers(self, ref: Ref) -> Iterator[int]:
        """Who wrote the memory `ref` names, latest first, back to the last write that covered all
        of it.

        Ops are their index; leaves are negative (see `leaf_name`).
        """
        log, length = ref
        for position in range(length - 1, -1, -1):
            index = log[position]
            yield index
            if index >= 0 and self.records[index].overwrites:
                return

    def leaf_name(self, index: int) -> str:
        return self.leaf_names[-index - 1]

    def coarse_slice(self, starts: Iterable[Ref], limit: int = 20_000) -> set[int]:
        """Every op through whose (screened) non-finite output the symptom can have come."""
        found: set[int] = set()
        queue = deque(starts)
        while queue and len(found) < limit:
            for index in self.writers(queue.popleft()):
                if index >= 0 and index not in found and self.bad[index]:
                    found.add(index)
                    queue.extend(self.records[index].inputs)
        return found

    def ancestors(self, ref: Ref, most: int) -> list[int]:
        """The nearest ops behind `ref`, breadth first, at most `most`."""
        found: list[int] = []
        seen: set[int] = set()
        queue = deque([ref])
        while queue and len(found) < most:
            for index in self.writers(queue.popleft()):
                if index >= 0 and index not in seen:
                    seen.add(index)
                    found.append(index)
                    queue.extend(self.records[index].inputs)
        return found

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """For each op, the ops that read what it wrote (last writer only)."""
        readers: dict[int, list[int]] = {}
        for index, record in enumerate(self.records):
            for log, length in record.inputs:
                if length and log[length - 1] >= 0:
                    readers.setdefault(log[length - 1], []).append(index)
        return readers

    def readers_of(self, index: int, sources: Sequence[Sequence[Source]]) -> list[int]:
        """The ops that read a tensor made by op `index`, by the tensor-level sources of every
        op."""
        return [
            reader
            for reader in range(index + 1, len(sources))
            if any(source.producer == index for source in sources[reader])
        ]

    @cached_property
    def _by_sequence(self) -> dict[int, list[int]]:
        table: dict[int, list[int]] = {}
        for index, record in enumerate(self.records):
            if record.phase in ("forward", "recompute"):
                table.setdefault(record.sequence, []).append(index)
        return table

    def forward_of(self, index: int) -> int | None:
        """The forward op whose derivative a backward op computes, by its autograd node's sequence
        number and name."""
        record = self.records[index]
        if record.node is None:
            return None
        # ops without a node of their own (views, no_grad) share the number of the node made before
        # them
        candidates = self._by_sequence.get(record.sequence, [])
        wanted = node_op_name(record.node)
        for candidate in candidates:
            name = _plain(self.records[candidate].info.name)
            if (
                name
                and wanted
                and (name == wanted or name.startswith(wanted) or wanted.startswith(name))
            ):
                return candidate
        # a custom autograd.Function: the ops of its forward run right after its node is made
        return candidates[0] if candidates and not re.search(r"Backward\d+$", record.node) else None

    def node_group(self, index: int) -> list[int]:
        """The backward ops that ran under the same autograd node as op `index`."""
        record = self.records[index]
        same = [index]
        for step in (-1, 1):
            other = index + step
            while 0 <= other < len(self.records):
                candidate = self.records[other]
                # ops of another device's backward may lie in between
                if candidate.thread == record.thread:
                    if (candidate.node, candidate.sequence) != (record.node, record.sequence):
                        break
                    same.append(other)
                other += step
        return sorted(same)

    # -- facts -------------------------------------------------------------------------------------

    def source_name(self, ref: Ref) -> str:
        """What an op's input is called: a leaf's name, or the op that last wrote it."""
        log, length = ref
        if not length:
            return "constant"
        last = log[length - 1]
        return self.leaf_name(last) if last < 0 else _base(self.records[last].info.name)

    def given_at(self, index: int, producer: int) -> SourceSpan | None:
        """The line that called the module, outside of any other, that op `index` runs in, where
        what it reads, of op `producer`, was given to that call."""
        for first, behind, place in self.module_calls:
            if first <= index < behind and not first <= producer < behind:
                return resolve(*place)
        return None

    def facts(self, index: int) -> OpFacts:
        """What is known of op `index`, with its source span and, if it was examined, its
        statistics."""
        record = self.records[index]
        forward = self.forward_of(index) if record.phase == "backward" else None
        named = self.records[forward] if forward is not None and record.place is None else record
        place = resolved(named.place)
        caller = resolved(named.caller)
        module_index = (
            record.module if record.module >= 0 or forward is None else self.records[forward].module
        )
        module, module_type = (
            self.modules[module_index] if 0 <= module_index < len(self.modules) else (None, None)
        )
        if module_index in self.scripted:  # the frame that was seen is only the module's caller
            line = self.scripted[module_index].line_of(_base(named.info.name).strip("_"))
            place, caller = (line, None) if line is not None else (place, caller)
        plain = OpFacts(
            index=index,
            op=record.info.name,
            phase=record.phase,
            module=module,
            module_type=module_type,
            location=place,
            called_from=caller,
            node=record.node,
        )
        detail = self.details.get(index)
        if detail is None:
            return plain
        labelled = [
            relabel(facts, self.source_name(ref))
            for facts, ref in zip(detail.inputs, record.inputs, strict=False)
        ]
        return replace(
            plain,
            inputs=tuple(labelled),
            outputs=tuple(detail.outputs),
            scalars=detail.scalars,
            values_at=tuple(detail.values_at),
            bad_rows=detail.bad_rows,
            upcast_absmax=detail.upcast_absmax,
            received=detail.received or is_exchange(record.info),
            notes=detail.notes,
        )


def relabel(facts: TensorFacts, label: str) -> TensorFacts:
    return replace(facts, label=label)


def node_op_name(node: str) -> str:
    """`SqrtBackward0` as the op it derives, letters only: `sqrt`."""
    return re.sub(r"Backward\d*$", "", node).lower()


def _base(op: str) -> str:
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")


def _plain(op: str) -> str:
    return _base(op).replace("_", "").lower()
