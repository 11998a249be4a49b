"""From the symptom back to the births: ops that made a non-finite value which the run did not
already have.

Works on a trace whose coarse slice was examined (exact statistics per input and output). A NaN
birth has NaN out and none in; an inf birth has inf out and nothing non-finite in. A NaN born from
an inf leads on to that inf, unless the inf was put there on purpose (a mask constant), in which
case the NaN birth itself is the root.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from nanodoc.facts.ops import RECEIVED, TensorFacts
from nanodoc.trace.collectives import copied_from
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.record import Record, Ref
from nanodoc.vocabulary.calls import PLACING
from nanodoc.vocabulary.names import op_name
from nanodoc.vocabulary.ops import FILLED

# Ops that put a constant the user chose into a tensor: an inf out of them is a mask, not an
# accident.
_CONSTANT_MAKERS = frozenset(
    (
        *FILLED,
        *PLACING,
        "where",
        "lift_fresh",
        "lift_fresh_copy",
        "tril",
        "triu",
        "local_scalar_dense",
        "copy",
        "constant_pad_nd",
    )
)


@dataclass(slots=True)
class Root:
    """Where a non-finite value entered the step: an op (`index`), or a leaf (`leaf`, read by op
    `index`)."""

    index: int
    kind: str
    leaf: str | None = None
    input_position: int = -1
    saved_nonfinite: bool = False
    """Backward ops only: a non-finite value saved by forward met a finite gradient."""
    inf_inputs: list[int] = field(default_factory=list)
    """Positions of inputs that held a harmless inf."""
    saved_inputs: list[int] = field(default_factory=list)
    origin: int | None = None
    """With `saved_nonfinite`: the forward op that made the saved value, where it was an op and no
    mask constant."""
    trail: list[int] = field(default_factory=list)
    """Ops from the symptom back to this root, nearest the root last."""


class RootSearch:
    """One search over an examined trace; `from_refs` gives each root once, in the order the ops
    ran."""

    def __init__(self, trace: StepTrace, *, loss_is_finite: bool) -> None:
        self._trace = trace
        self._loss_is_finite = loss_is_finite
        self._constant: dict[int, bool] = {}

    def from_refs(self, starts: list[Ref]) -> list[Root]:
        """The roots of the non-finite values in the memory `starts` names."""
        roots: dict[tuple[int, str | None], Root] = {}
        cause: dict[int, int] = {}  # op -> the next op towards the symptom
        queue = deque((index, -1) for ref in starts for index in self._bad_writers(ref))
        seen: set[int] = set()
        while queue:
            index, after = queue.popleft()
            if index in seen:
                continue
            seen.add(index)
            cause[index] = after
            root, further = self._visit(index, is_symptom=after < 0)
            for found in root:
                found.trail = self._trail(index, cause)
                roots.setdefault((found.index, found.leaf), found)
            queue.extend((other, index) for other in further)
        return sorted(self._without_mere_effects(list(roots.values())), key=lambda root: root.index)

    def alarming(self, refs: list[Ref]) -> list[Ref]:
        """Of memory read shortly before an exception, what can have caused it: NaN, or an inf that
        nobody put there."""
        found = []
        for ref in refs:
            writers = list(self._bad_writers(ref))
            if any(self._trace.details[w].out_nan or not self._only_constants(w) for w in writers):
                found.append(ref)
        return found

    def _visit(self, index: int, *, is_symptom: bool) -> tuple[list[Root], list[int]]:
        """The roots at op `index`, and the ops to go on with."""
        detail = self._trace.details[index]
        record = self._trace.records[index]
        bad = [
            i for i, facts in enumerate(detail.inputs) if facts.nonfinite and i < len(record.inputs)
        ]
        kind = "nan" if detail.out_nan else "inf"
        saved = [i for i in bad if self._is_saved(record, record.inputs[i])]
        flowing = [i for i in bad if i not in saved]
        if not flowing:
            forward = self._forward_roots([record.inputs[i] for i in saved]) if saved else []
            given = [root for root in forward if (root.leaf or "").startswith("batch")]
            if given:  # what came in like that, and the forward pass got over
                return given, []
            origin = next((r.index for r in forward if r.leaf is None and not r.inf_inputs), None)
            return [
                Root(index, kind, saved_nonfinite=bool(saved), saved_inputs=saved, origin=origin)
            ], []
        nan_in = [i for i in flowing if detail.inputs[i].nan]
        roots: list[Root] = []
        further: list[int] = []
        for position in nan_in if kind == "nan" and nan_in else flowing:
            ref, has_nan = record.inputs[position], detail.inputs[position].nan > 0
            writers = list(self._bad_writers(ref))
            if not writers and position > 0:
                sent = copied_from(record, self._trace.records)
                writers = [sent] if sent in self._trace.details else []
            if not writers and (
                has_nan or not self._is_harmless_leaf(ref, detail.inputs[position])
            ):
                roots.append(Root(index, kind, leaf=self._leaf(ref), input_position=position))
            further.extend(w for w in writers if has_nan or not self._only_constants(w))
        if not roots and not further and (kind == "nan" or is_symptom):
            roots.append(Root(index, kind, inf_inputs=flowing))  # made here, out of harmless infs
        return roots, further

    def _forward_roots(self, saved: list[Ref]) -> list[Root]:
        """Where non-finite values began which backward found saved."""
        return RootSearch(self._trace, loss_is_finite=False).from_refs(saved)

    def _is_saved(self, record: Record, ref: Ref) -> bool:
        """A value of the forward pass, non-finite there without hurting the loss, that a backward
        op reads."""
        if record.phase != "backward" or not self._loss_is_finite:
            return False
        for writer in self._trace.writers(ref):
            if writer < 0:
                return self._trace.leaf_name(writer) != RECEIVED
            if (
                writer in self._trace.details and self._trace.details[writer].out_bad
            ) or self._trace.bad[writer]:
                return self._trace.records[writer].phase in ("forward", "recompute")
        return True

    def _only_constants(self, start: int) -> bool:
        """True when every inf behind op `start` was put there on purpose."""
        behind, queue = {start}, [start]
        while queue:
            for _, writers in self._bad_inputs(queue.pop()):
                fresh = [w for w in writers if w not in behind and w not in self._constant]
                behind.update(fresh)
                queue.extend(fresh)
        for index in sorted(behind - self._constant.keys()):  # an op's writers ran before it
            self._constant[index] = self._is_mask_constant(index) or self._passes_constants(index)
        return self._constant[start]

    def _passes_constants(self, index: int) -> bool:
        """The op made no inf of its own, and all that it was given were put there on purpose."""
        bad = self._bad_inputs(index)
        if not bad or self._trace.details[index].out_nan:
            return False
        record, detail = self._trace.records[index], self._trace.details[index]
        for position, writers in bad:
            if not writers and not self._is_harmless_leaf(
                record.inputs[position], detail.inputs[position]
            ):
                return False
            if not all(self._constant.get(w, False) for w in writers):
                return False
        return True

    def _bad_inputs(self, index: int) -> list[tuple[int, list[int]]]:
        """The positions of an op's non-finite inputs, each with the ops that can have made it
        so."""
        record, detail = self._trace.records[index], self._trace.details[index]
        return [
            (i, list(self._bad_writers(record.inputs[i])))
            for i, f in enumerate(detail.inputs)
            if f.nonfinite and i < len(record.inputs)
        ]

    def _is_harmless_leaf(self, ref: Ref, facts: TensorFacts) -> bool:
        """An inf in a buffer or a constant was put there on purpose, and so was an additive mask
        that came with the batch (−inf and one other value); any other inf of a batch, and one in a
        parameter, was not."""
        kind = self._leaf(ref).split(":")[0]
        if kind.startswith("batch"):
            return not facts.nan and not facts.posinf and facts.minimum == facts.maximum
        return kind in ("constant", "buffer")

    def _is_mask_constant(self, index: int) -> bool:
        detail = self._trace.details.get(index)
        name = op_name(self._trace.records[index].info.name)
        if name not in _CONSTANT_MAKERS or detail is None or detail.out_nan:
            return False
        return not any(facts.nonfinite for facts in detail.inputs)

    def _bad_writers(self, ref: Ref) -> Iterator[int]:
        for index in self._trace.writers(ref):
            if index >= 0 and index in self._trace.details and self._trace.details[index].out_bad:
                yield index

    def _leaf(self, ref: Ref) -> str:
        for index in self._trace.writers(ref):
            if index < 0:
                return self._trace.leaf_name(index)
            if self._trace.records[index].info.silent:
                return "uninitialised"
        return "constant"

    def _trail(self, index: int, cause: dict[int, int]) -> list[int]:
        trail: list[int] = []
        while index >= 0 and len(trail) < 10_000:
            trail.append(index)
            index = cause[index]
        return trail[::-1]

    def _without_mere_effects(self, roots: list[Root]) -> list[Root]:
        """Drops a NaN made of a harmless inf when the same search found where a real one came from
        upstream of it."""
        real = [root for root in roots if not root.inf_inputs]
        if not real:
            return roots
        return [
            root
            for root in roots
            if not root.inf_inputs or not any(root.index in other.trail[:-1] for other in real)
        ]
