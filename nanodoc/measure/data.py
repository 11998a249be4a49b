"""What the batches hold, over those that are still there when the run has ended."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from nanodoc.accelerator import in_widest
from nanodoc.facts.loop import BatchLeaf, DataFacts
from nanodoc.measure.copies import copies
from nanodoc.measure.padded_labels import padded_labels
from nanodoc.measure.pair_distances import pair_distances, triplet_distances
from nanodoc.tensors.nested import tensor_leaves

_MOST_BATCHES = 8
_MOST_COLUMNS = 64
_MOST_ELEMENTS = 4_000_000  # of one leaf of one batch


def data_facts(
    batches: Sequence[Any],
    *,
    loader: bool,
    per_pass: int | None,
    waits: Sequence[float],
    step_seconds: float,
    steps: int,
) -> DataFacts:
    """`batches` in the order they came, each what one step was given; `waits`: the seconds that
    each step waited for its own."""
    load_seconds = sum(waits)
    total = load_seconds + step_seconds
    chosen = list(batches)[-_MOST_BATCHES:]
    leaves: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        for batch in chosen:
            for path, tensor in tensor_leaves(batch):
                if _measurable(tensor):
                    leaves.setdefault(path, []).append(tensor)
        found = tuple(_leaf(path, tensors) for path, tensors in leaves.items())
        copied, padded = copies(leaves), padded_labels(leaves)
        pairs, triplets = pair_distances(leaves), triplet_distances(leaves)
        identical = _identical(chosen)
    return DataFacts(
        batches=len(chosen),
        leaves=found,
        copies=copied,
        padded=padded,
        pairs=pairs,
        triplets=triplets,
        identical=identical,
        loader=loader,
        per_pass=per_pass,
        load_share=load_seconds / total if total > 0 and steps else None,
        load_seconds=load_seconds / steps if steps else 0.0,
        median_wait=statistics.median(waits) if waits else 0.0,
    )


def _measurable(tensor: torch.Tensor) -> bool:
    plain = (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.device.type != "meta"
    )
    return plain and 0 < tensor.numel() <= _MOST_ELEMENTS and not tensor.is_complex()


def _leaf(path: str, tensors: list[torch.Tensor]) -> BatchLeaf:
    first = tensors[0]
    flat = torch.cat([t.detach().flatten().cpu().double() for t in tensors])
    floating = first.is_floating_point()
    finite = flat[torch.isfinite(flat)]
    if not finite.numel():
        finite = flat.new_zeros(1)
    shares, value, ragged = (
        _most_frequent(tensors)
        if not floating and first.dtype != torch.bool
        else ([0.0], None, False)
    )
    return BatchLeaf(
        path=path,
        dtype=str(first.dtype).removeprefix("torch."),
        shape=tuple(first.shape),
        floating=floating,
        minimum=float(finite.min()),
        maximum=float(finite.max()),
        mean=float(finite.mean()),
        std=float(finite.std(unbiased=False)),
        typical=_typical(tensors, largest=True),
        typical_mean=_typical(tensors, largest=False),
        same_samples=_same_samples(tensors),
        top_share=min(shares),
        top_value=value,
        ragged=ragged,
        columns=_columns(tensors),
        constant=bool((flat == flat[0]).all()),
    )


def _columns(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    first = tensors[0]
    few = first.dim() == 2 and 2 <= first.shape[1] <= _MOST_COLUMNS
    if first.is_floating_point() or first.dtype == torch.bool or not few:
        return ()
    rows = torch.cat([t for t in tensors if t.shape[1:] == first.shape[1:]]).detach().cpu()
    return tuple(rows.amax(0).tolist()) if int(rows.min()) >= 0 else ()


def _most_frequent(tensors: list[torch.Tensor]) -> tuple[list[float], float | None, bool]:
    """Share of the most frequent value batch by batch, that value, and whether rows end or begin in
    runs of it, of different lengths."""
    values, counts = torch.unique(torch.cat([t.flatten() for t in tensors]), return_counts=True)
    top = values[counts.argmax()]
    shares = [float((t == top).float().mean()) for t in tensors]
    ragged = False
    for tensor in tensors:
        if tensor.dim() == 2 and tensor.shape[1] > 2:
            same = tensor == top
            for rows in (same.flip(1), same):
                lengths = rows.long().cumprod(1).sum(1)
                inside = int(same.sum()) - int(lengths.sum())
                ragged |= int(lengths.unique().numel()) > 2 and inside <= 0.05 * int(lengths.sum())
    return shares, float(top), ragged


def _typical(tensors: list[torch.Tensor], *, largest: bool) -> float:
    rows = [
        in_widest(t.detach()).reshape(t.shape[0], -1)
        if t.dim()
        else in_widest(t.detach()).reshape(1, 1)
        for t in tensors
    ]
    values = torch.cat([(row.abs().amax(1) if largest else row.mean(1)).cpu() for row in rows])
    return float(values.nan_to_num().median())


def _same_samples(tensors: list[torch.Tensor]) -> bool:
    if not tensors[0].dim():
        return False
    rows = tensors[0][:1]
    alike = all(
        t.dim() and t.shape[0] and t.shape[1:] == rows.shape[1:] and bool((t == rows).all())
        for t in tensors
    )
    return alike and any(t.shape[0] > 1 for t in tensors)


def _identical(batches: Sequence[Any]) -> int:
    """Successive batches that hold the same values in other memory."""
    count = 0
    for before, after in itertools.pairwise(batches):
        first, other = [t for _, t in tensor_leaves(before)], [t for _, t in tensor_leaves(after)]
        count += (
            bool(first)
            and len(first) == len(other)
            and all(_same(a, b) for a, b in zip(first, other, strict=True))
        )
    return count


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (_measurable(a) and _measurable(b)) or a is b or a.data_ptr() == b.data_ptr():
        return False
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
