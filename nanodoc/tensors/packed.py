"""Many small tensors as a few large ones. Each call of torch takes about a microsecond, however
small its tensor; and thousands of tensors that are kept cost Python's garbage collector more than
copying them did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from nanodoc.instrument.torch_private import DisableAutocast, flatten_dense_tensors

_SMALL = 1 << 12  # elements: a larger one costs what its values cost
_PIECE = 1 << 20  # elements: so much more memory is taken on a device while it is copied
_DENSE = (torch.Tensor, torch.nn.Parameter)


Layout = tuple[torch.Size, tuple[int, ...]]
"""Shape and strides: those of a dimension of one element may be any, and stay what they were."""


@dataclass(slots=True)
class Piece:
    """The values of some small tensors of one dtype and device, one behind the other."""

    places: list[int]
    """Theirs among the tensors that were given."""
    layouts: list[Layout]
    values: torch.Tensor

    def tensors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each place and a view of the tensor's values."""
        parts = self.values.split([shape.numel() for shape, _ in self.layouts])
        for place, layout, part in zip(self.places, self.layouts, parts, strict=True):
            yield place, part.as_strided(*layout)


def in_pieces(values: Sequence[Any]) -> tuple[Iterator[Piece], list[int]]:
    """(the small dense floating tensors among the values, in pieces; the places of all the others).
    Each piece is made when it is asked for."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    others = []
    for place, value in enumerate(values):
        if type(value) in _DENSE and value.layout is torch.strided and value.numel() <= _SMALL:
            dtype = value.dtype
            usual = not value.is_nested and value.is_leaf  # a copy of another keeps its graph
            if dtype.is_floating_point and usual and value.is_contiguous():
                groups.setdefault((dtype, value.device), []).append(place)
                continue
        others.append(place)
    return chain.from_iterable(_pieces(values, group) for group in groups.values()), others


def _pieces(values: Sequence[torch.Tensor], group: list[int]) -> Iterator[Piece]:
    # few different ones, each once: the collector looks at every object
    known: dict[Layout, Layout] = {}
    places: list[int] = []
    layouts: list[Layout] = []
    size = 0
    for place in group:
        tensor = values[place]
        size += tensor.numel()
        if size > _PIECE:
            yield Piece(places, layouts, _joined(values, places))
            places, layouts, size = [], [], tensor.numel()
        places.append(place)
        layout = tensor.shape, tensor.stride()
        layouts.append(known.setdefault(layout, layout))
    yield Piece(places, layouts, _joined(values, places))


@torch.no_grad()
def _joined(values: Sequence[torch.Tensor], places: list[int]) -> torch.Tensor:
    """Memory of its own."""
    with DisableAutocast():  # which refuses to join half-precision tensors
        joined: torch.Tensor = flatten_dense_tensors([values[place] for place in places])
    return joined.clone() if len(places) == 1 else joined  # else a view of the only one


class PackedCopies(Collection[Any]):
    """Copies of values, to be read one after the other as often as is wanted; with `host` in the
    host's memory. Small tensors are packed; `copied` copies what is none."""

    def __init__(
        self, values: Sequence[Any], copied: Callable[[Any, bool], Any], *, host: bool
    ) -> None:
        self._count = len(values)
        pieces, others = in_pieces(values)
        self._pieces = list(map(_on_host, pieces) if host else pieces)
        self._others = [(place, copied(values[place], host)) for place in others]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        found: list[Any] = [None] * self._count
        for piece in self._pieces:
            for place, tensor in piece.tensors():
                found[place] = tensor
        for place, other in self._others:
            found[place] = other
        return iter(found)

    def __contains__(self, value: object) -> bool:
        return any(value is one for one in self)


def _on_host(piece: Piece) -> Piece:
    piece.values = piece.values.to("cpu")
    return piece


class PackedState:
    """A copy of an optimizer's state, which is a dictionary of named values for each parameter;
    arguments as `PackedCopies`."""

    def __init__(
        self, state: Iterable[tuple[Any, Any]], copied: Callable[[Any, bool], Any], *, host: bool
    ) -> None:
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._keys: list[tuple[Any, ...] | None] = []
        self._parameters: list[Any] = []
        values: list[Any] = []
        for parameter, own in state:
            self._parameters.append(parameter)
            if type(own) is dict:
                keys = tuple(own)
                self._keys.append(known.setdefault(keys, keys))
                values += own.values()
            else:
                self._keys.append(None)
                values.append(own)
        self._values = PackedCopies(values, copied, host=host)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Each parameter and its part of the state."""
        values = iter(self._values)
        for parameter, keys in zip(self._parameters, self._keys, strict=True):
            if keys is None:
                yield parameter, next(values)
            else:
                yield parameter, {key: next(values) for key in keys}
