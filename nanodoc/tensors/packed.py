"""Many small tensors as a few large ones. Each call of torch takes about a microsecond, however
small its tensor; and thousands of tensors that are kept cost Python's garbage collector more than
copying them did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors

_SMALL = 1 << 14  # elements: a larger one costs what its values cost
_PIECE = 1 << 20  # elements: so much more memory is taken on a device while it is copied
_DENSE = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Piece:
    """The values of some small tensors of one dtype and device, one behind the other."""

    places: list[int]
    """Theirs among the tensors that were given."""
    shapes: list[torch.Size]
    values: torch.Tensor

    def tensors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each place and a view of the tensor's values."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = self.values.split(sizes)
        for place, shape, part in zip(self.places, self.shapes, parts, strict=True):
            yield place, part.view(shape)


def in_pieces(values: Sequence[Any]) -> tuple[Iterator[Piece], list[int]]:
    """(the small dense floating tensors among the values, in pieces; the places of all the others).
    Each piece is made when it is asked for."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    others = []
    for place, value in enumerate(values):
        if type(value) in _DENSE and value.layout is torch.strided and value.numel() <= _SMALL:
            dtype = value.dtype
            if dtype.is_floating_point and value.is_contiguous():
                groups.setdefault((dtype, value.device), []).append(place)
                continue
        others.append(place)
    return chain.from_iterable(_pieces(values, group) for group in groups.values()), others


def _pieces(values: Sequence[torch.Tensor], group: list[int]) -> Iterator[Piece]:
    # few different shapes, each once: the collector looks at every object
    known: dict[torch.Size, torch.Size] = {}
    places: list[int] = []
    shapes: list[torch.Size] = []
    size = 0
    for place in group:
        tensor = values[place]
        size += tensor.numel()
        if size > _PIECE:
            yield Piece(places, shapes, _joined(values, places))
            places, shapes, size = [], [], tensor.numel()
        places.append(place)
        shapes.append(known.setdefault(tensor.shape, tensor.shape))
    yield Piece(places, shapes, _joined(values, places))


@torch.no_grad()
def _joined(values: Sequence[torch.Tensor], places: list[int]) -> torch.Tensor:
    """Memory of its own."""
    joined: torch.Tensor = _flatten_dense_tensors([values[place] for place in places])
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
