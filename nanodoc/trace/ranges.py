"""Indices and labels that reach beyond what they index, found before the kernel that would assert
on them."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.facts.calls import RangeFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.trace.spans import calling_places, resolved
from nanodoc.vocabulary.calls import CLASSIFICATION

look_through(__file__)

RANGED = frozenset(
    (
        *CLASSIFICATION,
        "embedding",
        "embedding_bag",
        "one_hot",
        "index_select",
        "gather",
        "take_along_dim",
        "getitem",
    )
)
_MOST_SAMPLES = 16


def out_of_range(
    name: str, args: Any, kwargs: Any, module: tuple[str, str] | None
) -> RangeFacts | None:
    """The indices of this call that are out of range; None where all are fine, or the call can't be
    judged."""
    try:
        with torch.no_grad(), DisableTorchFunction():
            found = _judged(name, args, kwargs)
            if found is None:
                return None
            indices, size, ignored = found
            least = -size if name == "getitem" else 0  # brackets count from the end, too
            bad = (indices < least) | (indices >= size)
            if ignored is not None:
                bad &= indices != ignored
            if not bool(bad.any()):
                return None
            first = bad.nonzero()[0].tolist()
            values = indices[bad]
            samples, rows = _rows(bad, _offsets(args, kwargs) if name == "embedding_bag" else None)
            own, caller = calling_places(3)
            return RangeFacts(
                function=name,
                label=name in CLASSIFICATION,
                size=size,
                value=int(indices[tuple(first)]),
                position=tuple(first),
                count=int(bad.sum()),
                minimum=int(values.min()),
                maximum=int(values.max()),
                least=int((indices if ignored is None else indices[indices != ignored]).min()),
                consecutive=indices.dim() > 0
                and indices.shape[-1] > 1
                and bool((indices.diff(dim=-1) == 1).all()),
                shape=tuple(indices.shape),
                samples=samples,
                rows=rows,
                module=module[0] if module else None,
                module_type=module[1] if module else None,
                location=resolved(own),
                called_from=resolved(caller),
            )
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        # the call itself is wrong: it will say so
        return None


def _rows(bad: torch.Tensor, offsets: torch.Tensor | None) -> tuple[tuple[int, ...], int]:
    """(the first rows that hold one, how many rows there are): of the first dimension, or the bags
    that a flat list of ids is cut into"""
    if bad.dim() == 1 and offsets is not None:
        places = bad.nonzero().flatten()
        bags = torch.searchsorted(offsets.to(places), places, right=True) - 1
        return tuple(bags.unique()[:_MOST_SAMPLES].tolist()), int(offsets.shape[0])
    rows = bad.flatten(1).any(1) if bad.dim() > 1 else bad
    return tuple(rows.nonzero().flatten()[:_MOST_SAMPLES].tolist()), int(
        rows.shape[0]
    ) if rows.dim() else 0


def _offsets(args: Any, kwargs: Any) -> torch.Tensor | None:
    """Where the bags of embedding_bag(input, weight, offsets, ..., include_last_offset) begin."""
    offsets = args[2] if len(args) > 2 else kwargs.get("offsets")
    if not isinstance(offsets, torch.Tensor):
        return None
    return (
        offsets[:-1]
        if (args[9] if len(args) > 9 else kwargs.get("include_last_offset"))
        else offsets
    )


def _judged(name: str, args: Any, kwargs: Any) -> tuple[torch.Tensor, int, int | None] | None:
    """(indices, how many there are to choose from, a value that stands for none)"""
    values = list(args) + [
        kwargs[key]
        for key in ("input", "target", "weight", "dim", "index", "num_classes")
        if key in kwargs and not args
    ]
    if name in ("embedding", "embedding_bag"):
        ids, weight = args[0], args[1] if len(args) > 1 else kwargs.get("weight")
        return (
            (ids, int(weight.shape[0]), None)
            if _integers(ids) and isinstance(weight, torch.Tensor)
            else None
        )
    if name in CLASSIFICATION:
        logits, target = values[0], values[1] if len(values) > 1 else kwargs.get("target")
        ignored = kwargs.get("ignore_index", -100)
        if not _integers(target) or not isinstance(logits, torch.Tensor):
            return None
        return target, int(logits.shape[1] if logits.dim() > 1 else logits.shape[0]), int(ignored)
    if name == "one_hot":
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        return (args[0], int(classes), None) if _integers(args[0]) and classes > 0 else None
    if name == "getitem":
        return _bracketed(args[0], args[1]) if len(args) == 2 else None
    if name in ("index_select", "gather", "take_along_dim"):
        order = ("input", "dim", "index") if name != "take_along_dim" else ("input", "index", "dim")
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        source, dim, index = (
            given.get("input"),
            given.get("dim"),
            given.get("index", given.get("indices")),
        )
        if (
            isinstance(source, torch.Tensor)
            and isinstance(index, torch.Tensor)
            and isinstance(dim, int)
            and _integers(index)
        ):
            return index, int(source.shape[dim]), None
    return None


def _bracketed(source: Any, key: Any) -> tuple[torch.Tensor, int, int | None] | None:
    """Of `source[key]`, the first index tensor that reaches too far."""
    keys = key if isinstance(key, tuple) else (key,)
    if not isinstance(source, torch.Tensor) or any(
        index is None or index is Ellipsis or isinstance(index, (bool, list)) for index in keys
    ):
        return None
    for dim, index in enumerate(keys):
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            return None  # a mask takes as many dimensions as it has
        if (
            _integers(index)
            and dim < source.dim()
            and bool(((index < -source.shape[dim]) | (index >= source.shape[dim])).any())
        ):
            return index, int(source.shape[dim]), None
    return None


def _integers(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dtype in (torch.int64, torch.int32)
        and tensor.numel() > 0
        and not tensor.is_nested
    )
