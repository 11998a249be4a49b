"""Sequences of ids: next tokens, and paddings.

The step is run once more. Its labels are compared with the ids that its embeddings look up; the
gradient of a position's scores with respect to the embedded ids says which of them it read: a later
one, which it is to predict, or padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.examination.end_label import asked_prompts, attention_masks, labels_beside, unasked_end
from nanodoc.examination.end_read import Recurrence, read_at_end
from nanodoc.examination.padding_read import padding_facts
from nanodoc.facts.inspection import PaddingFacts, SequenceFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import current_autograd_node
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.trace.calls import plain_name
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import CLASSIFICATION, RECURRENT

_SHORTEST = 4
"""Positions of a sequence."""
_FEWEST = 32
"""Labels that are compared."""
_SAME = 0.99
"""Of the labels that are the inputs so many positions later."""
_OTHERS = 0.9
"""At most so many may be the inputs at any other distance: sequences of one token are all of
them."""
_PARTLY = 0.2
"""Of the labels: the same by chance are far fewer."""
_DISTANCES = (0, 1, 2, -1, 3, 4)
_TOLD = (0, 1, 2, -1)
_LEAKS = 1e-4
"""Times the largest gradient of the positions that may be read."""
_MOST_LOOKUPS = 8
_OF_POSITIONS = (*CLASSIFICATION, "binary_cross_entropy_with_logits")
_MOST_ELEMENTS = 50_000_000
_GIVEN_LABELS = ("['labels']", ".labels")
"""Ends of the name of the part of the batch that models of transformers take."""


@dataclass(slots=True)
class Lookup:
    """One lookup in an embedding."""

    ids: torch.Tensor
    """As sequences: (sequences, positions)."""
    embedded: torch.Tensor
    time_first: bool

    def rows(self, gradient: torch.Tensor) -> torch.Tensor:
        """Size of the gradient by sequence and position."""
        sizes: torch.Tensor = gradient.detach().float().norm(dim=-1)
        return sizes.t() if self.time_first else sizes


class SequenceLook(TorchFunctionMode):
    """A context manager around a step that is run again; `facts` then says what was seen. Masks of
    its `batches` say where its sequences end."""

    def __init__(self, batches: Iterable[Any] = (), *, shifting: bool = False) -> None:
        """`shifting`: the model shifts the labels that it is given by one position."""
        super().__init__()
        self._batches, self._shifting = list(batches), shifting
        self._masks = tuple(attention_masks(self._batches))
        self._lookups: list[Lookup] = []
        self._recurrence: Recurrence | None = None
        self.brought: str | None = None
        """The leaf of the batch that holds the labels, where no loss function told of them."""
        self.read = 0
        """Which of the lookups holds the labels."""
        self.facts: SequenceFacts | None = None
        self.padding: PaddingFacts | None = None

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        if self.facts is None and exc[0] is None:
            self.facts = self._brought()
        self._lookups, self._recurrence, self._batches = [], None, []

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = call(func, *args, **kwargs)
        if not torch.is_grad_enabled() or current_autograd_node() is not None:
            return out
        name = plain_name(func)
        if name == "embedding" and len(self._lookups) < _MOST_LOOKUPS:
            self._lookups += lookups_of(args, kwargs, out)
        elif name in RECURRENT:  # of several, the last one gives what is read
            known = (look.ids for look in self._lookups if not look.time_first)
            shapes = {(ids.shape[0], ids.shape[1]) for ids in known}
            self._recurrence = Recurrence.of(out, shapes)
        elif name in _OF_POSITIONS and self.facts is None and self.padding is None:
            own, caller = calling_places(2)
            scores = kwargs.get("input", args[0] if args else None)
            labels = kwargs.get("target", args[1] if len(args) > 1 else None)
            ignored = kwargs.get("ignore_index", -100)
            with torch.enable_grad():
                if name in CLASSIFICATION and _comparable(scores, labels):
                    self.facts = self._compared(scores, labels, ignored, caller or own)
                if isinstance(scores, torch.Tensor) and scores.requires_grad:
                    self.padding = self._padded(scores)
        elif name == "gather" and self.facts is None:  # a cross entropy by hand, or a library's own
            picked = _picked(*args, **kwargs)
            if picked is not None and _comparable(*picked):
                own, caller = calling_places(2)
                with torch.enable_grad():
                    self.facts = self._compared(*picked, -100, caller or own)
        return out

    def _padded(self, scores: torch.Tensor) -> PaddingFacts | None:
        for lookup in self._lookups:
            if not lookup.time_first:
                found = padding_facts(scores, lookup.ids, lookup.embedded)
                if found is not None:
                    return self._with_end(found, lookup, scores)
        return None

    def _with_end(self, found: PaddingFacts, lookup: Lookup, scores: torch.Tensor) -> PaddingFacts:
        if self._recurrence is None:
            return found
        rows, behind = read_at_end(self._recurrence, scores, lookup.ids == found.value)
        return replace(found, read_at_end=rows, behind=behind)

    def _compared(
        self, scores: torch.Tensor, labels: torch.Tensor, ignored: int, place: Place | None
    ) -> SequenceFacts | None:
        found = [
            (lookup, distance, grid)
            for lookup in self._lookups
            if (grid := _as_rows(labels, lookup)) is not None
            for distance in [_distance(lookup.ids, grid, grid != ignored)]
            if distance is not None
        ]
        # a decoder that is given the tokens before: an encoder may read the answer itself
        shifted = [(lookup, distance, grid) for lookup, distance, grid in found if distance > 0]
        if not found or (not shifted and self._is_partly_given(labels, ignored)):
            return None
        lookup, distance, grid = (shifted or found)[0]
        self.read = next(i for i, one in enumerate(self._lookups) if one is lookup)
        later = 0
        # a model that is given the labels themselves beside them reads them there: nothing of a
        # mask is known then
        if all(distance for _, distance, _ in found):
            later = min(
                (_reads_later(scores, lookup, rows) for lookup, _, rows in shifted), default=0
            )
        masks = self._masks if distance == 1 else ()
        return SequenceFacts(
            distance=distance,
            positions=grid.shape[1],
            labels=int((grid != ignored).sum()),
            reads_later=later,
            at=resolved(place),
            ignored=ignored,
            unasked_end=unasked_end(lookup.ids, grid, ignored, masks),
            prompts=asked_prompts(lookup.ids, grid, ignored, masks),
        )

    def _brought(self) -> SequenceFacts | None:
        """Of labels that no known loss function was given."""
        for lookup in self._lookups:
            if lookup.time_first:
                continue
            twice = self._shifted_twice(lookup.ids) if self._shifting else None
            if twice is not None:
                return twice
            beside = labels_beside(lookup.ids, self._batches)
            if beside is not None and self._masks:
                self.brought, labels, ignored = beside
                grid = labels[:, 1:]
                return SequenceFacts(
                    distance=1,
                    positions=grid.shape[1],
                    labels=int((grid != ignored).sum()),
                    reads_later=-1,
                    ignored=ignored,
                    unasked_end=unasked_end(lookup.ids, grid, ignored, self._masks),
                    prompts=asked_prompts(lookup.ids, grid, ignored, self._masks),
                )
        return None

    def _shifted_twice(self, ids: torch.Tensor) -> SequenceFacts | None:
        """Labels that are shifted already when a model is given them that shifts them itself."""
        for batch in self._batches:
            for name, tensor in tensor_leaves(batch, "batch"):
                if tensor.shape != ids.shape or not name.endswith(_GIVEN_LABELS):
                    continue
                counted = tensor >= 0
                if not tensor.is_floating_point() and _distance(ids, tensor, counted) == 1:
                    self.brought = name
                    return SequenceFacts(
                        distance=2,
                        positions=tensor.shape[1],
                        labels=int(counted.sum()),
                        reads_later=-1,
                    )
        return None

    def _is_partly_given(self, labels: torch.Tensor, ignored: int) -> bool:
        """A decoder is given the tokens before, some of them replaced at random (word dropout)."""
        for lookup in self._lookups:
            grid = _as_rows(labels, lookup)
            if grid is None:
                continue
            shares = {d: _share(lookup.ids, grid, grid != ignored, d) or 0.0 for d in _DISTANCES}
            others = max(share for d, share in shares.items() if d != 1)
            if shares[1] >= max(_PARTLY, 2 * others):
                return True
        return False


def lookups_of(args: Any, kwargs: Any, out: Any) -> Iterator[Lookup]:
    ids = kwargs.get("input", args[0] if args else None)
    if not isinstance(ids, torch.Tensor) or not isinstance(out, torch.Tensor) or ids.dim() != 2:
        return
    if out.numel() > _MOST_ELEMENTS or not out.requires_grad or out.shape[:2] != ids.shape:
        return
    if ids.shape[1] >= _SHORTEST:
        yield Lookup(ids.detach(), out, time_first=False)
    if ids.shape[0] >= _SHORTEST:
        yield Lookup(ids.detach().t(), out, time_first=True)


def _comparable(scores: Any, labels: Any) -> bool:
    return (
        isinstance(scores, torch.Tensor)
        and isinstance(labels, torch.Tensor)
        and scores.requires_grad
        and not labels.is_floating_point()
        and labels.numel() >= _FEWEST
    )


def _picked(
    input: Any, dim: Any = -1, index: Any = None, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(scores, labels) of a gather that takes one of the last dimension's scores at each place."""
    if not isinstance(input, torch.Tensor) or not isinstance(index, torch.Tensor):
        return None
    last = dim in (-1, input.dim() - 1)
    if not last or input.dim() < 2 or index.shape != (*input.shape[:-1], 1):
        return None
    # as cross entropy takes them: the classes behind the sequences
    return (input.movedim(-1, 1) if input.dim() == 3 else input), index[..., 0]


def _as_rows(labels: torch.Tensor, lookup: Lookup) -> torch.Tensor | None:
    """The labels by sequence and position, of as many positions as the ids or one less."""
    count, length = lookup.ids.shape
    if not count or labels.numel() % count or labels.numel() // count not in (length, length - 1):
        return None
    positions = labels.numel() // count
    if lookup.time_first:
        return labels.detach().reshape(positions, count).t()
    return labels.detach().reshape(count, positions)


def _distance(ids: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor) -> int | None:
    """How many positions after its own the input lies that each label is; None where they are not
    the inputs, or the inputs at several distances."""
    shares = {
        d: share for d in _DISTANCES if (share := _share(ids, labels, counted, d)) is not None
    }
    best = max(shares, key=lambda d: shares[d], default=None)
    if best is None or best not in _TOLD or shares[best] < _SAME:
        return None
    return best if all(s <= _OTHERS for d, s in shares.items() if d != best) else None


def _share(
    ids: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor, distance: int
) -> float | None:
    first, skipped = max(distance, 0), max(-distance, 0)
    length = min(labels.shape[1] - skipped, ids.shape[1] - first)
    if length < 2:
        return None
    chosen = slice(skipped, skipped + length)
    kept = counted[:, chosen]
    if distance > 0:  # the last labels of a padded sequence lie behind what is read of it
        within = counted[:, distance:]
        kept = kept[:, : within.shape[1]] & within[:, : kept.shape[1]]
        length = min(length, kept.shape[1])
        kept, chosen = kept[:, :length], slice(0, length)
    if int(kept.sum()) < _FEWEST:
        return None
    same = labels[:, chosen] == ids[:, first : first + length].to(labels.device)
    return float(same[kept].float().mean())


def positions_of(count: int, length: int) -> tuple[tuple[int, int], ...]:
    """(sequence, position) of those that are looked at. The second of the first sequence also shows
    a view that swaps sequences and positions; the first one stays where it is."""
    return (0, 1), (count - 1, length // 2)


def _reads_later(scores: torch.Tensor, lookup: Lookup, labels: torch.Tensor) -> int:
    """At how many of a few positions the scores depend on an input after their own; -1 where that
    can't be told."""
    count, length = labels.shape
    leaking = 0
    for sequence, position in positions_of(count, length):
        row = _scores_at(scores, lookup, sequence, position, count, length)
        if row is None:
            return -1
        weights = torch.linspace(-1.0, 1.5, row.numel(), device=row.device, dtype=row.dtype)
        try:
            (gradient,) = torch.autograd.grad(
                (row * weights).sum(), lookup.embedded, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that cannot be walked twice
            return -1
        if gradient is None:
            return -1
        sizes = lookup.rows(gradient)[sequence]
        own, later = sizes[: position + 1].max(), sizes[position + 1 :].max()
        leaking += bool(later > _LEAKS * torch.maximum(own, later))
    return leaking


def _scores_at(
    scores: torch.Tensor, lookup: Lookup, sequence: int, position: int, count: int, length: int
) -> torch.Tensor | None:
    """The scores of one position."""
    if scores.dim() == 2 and scores.shape[0] == count * length:
        flat = position * count + sequence if lookup.time_first else sequence * length + position
        return scores[flat]
    if scores.dim() == 3 and scores.shape[0] == count and scores.shape[2] == length:
        return scores[sequence, :, position]
    return None
