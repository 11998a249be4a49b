"""Single samples of a data set, drawn again and again: does a draw change what the data set keeps,
and are an image and its mask turned alike? Whoever asks does so in a process of its own: the data
set may change."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.examination.lines_that import LineThatTurns, LineThatWrites
from nanodoc.examination.orientation import is_mask, plane, turn_of_image, turn_of_mask
from nanodoc.facts.items import AS_IT_WAS, ChangingItem, ItemFacts, UnpairedItem
from nanodoc.facts.source import SourceSpan
from nanodoc.tensors.plain import is_plain

_DRAWS = 12
_FEWEST_PAIRS = 3
"""Pairs of draws, of one sample, whose image and mask lie differently: a picture that looks alike
from two sides gives one."""
_LARGEST = 1 << 28  # bytes of all that is compared
_MOST_MET = 512  # objects
_BETWEEN_PROCESSES = ("multiprocessing", "ctypes", "_ctypes", "mmap", "sqlite3", "lmdb", "h5py")
_DEPTH = 4
_CHANGED = 0.01
"""Of a sample's own size: what a draw changes on purpose, such as a mean over all samples so far,
moves one sample by far less."""


def look_at_items(dataset: Any, seconds: float) -> ItemFacts:
    """Draws some samples for at most about `seconds`. Raises whatever the data set raises."""
    until = time.monotonic() + seconds
    size = len(dataset)
    changing: ChangingItem | None = None
    unpaired: UnpairedItem | None = None
    for index in sorted({0, size // 3, size - 1}) if size else ():
        if time.monotonic() > until:
            break
        drawn = _Drawn(dataset, index, until)
        changing = changing or drawn.changing()
        if changing is None:
            unpaired = unpaired or drawn.unpaired()
    return ItemFacts(changing=changing, unpaired=unpaired)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One sample, drawn as often as needed."""

    dataset: Any
    index: int
    until: float

    def draw(self, seed: int) -> dict[str, torch.Tensor]:
        """The parts of the sample, copied."""
        random.seed(seed)
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        return {path: part.clone() for path, part in parts_of(self.dataset[self.index])}

    def in_time(self) -> bool:
        return time.monotonic() < self.until

    # -- a sample that changes ---------------------------------------------------------------------

    def changing(self) -> ChangingItem | None:
        """The causal test: the draw writes into an array, the next draw of the sample differs, and
        with the old content put back it does not."""
        self.draw(0)  # a data set may fill a cache when it is first asked
        held = dict(_held(self.dataset, self.index))
        before = {name: value.clone() for name, value in held.items()}
        first = self.draw(0)
        written = [name for name, value in held.items() if not _same(value, before[name])]
        if not written or not self.in_time():
            return None
        second = self.draw(0)
        part = next((path for path in first if _moved(first[path], second.get(path))), None)
        if part is None:
            return None
        shown = [values[part] for values in (first, second, self.draw(0)) if part in values]
        _put_back(held, before)
        again = self.draw(0)
        if part not in again or not _same(again[part], first[part]):
            return None  # a generator of the data set's own
        changed = {key: int((held[key] != before[key]).sum()) for key in written}
        name = max(changed, key=lambda key: changed[key])
        if 2 * changed[name] < first[part].numel():
            return None  # a counter, a pointer: it is not the sample that is written
        return ChangingItem(
            index=self.index,
            holder=name,
            part=part,
            ranges=tuple((float(values.min()), float(values.max())) for values in shown),
            line=self._writing_line(held, before, name),
        )

    def _writing_line(
        self, held: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], name: str
    ) -> SourceSpan | None:
        value, old = held[name], before[name]
        places = (value != old).nonzero()
        if not len(places):
            return None
        place = tuple(int(number) for number in places[0])
        _put_back(held, before)
        with LineThatWrites(lambda: value[place].item()) as line:
            self.draw(0)
        return line.found

    # -- an image and its mask ---------------------------------------------------------------------

    def unpaired(self) -> UnpairedItem | None:
        first = self.draw(1)
        pair = _image_and_mask(first)
        if pair is None:
            return None
        draws = [first]
        for seed in range(2, _DRAWS + 1):
            if not self.in_time():
                break
            draws.append(self.draw(seed))
        seen = [(parts, list(_turns(draws, *parts))) for parts in pair]
        if any(all(one == other for one, other in turns) for _, turns in seen):
            return None  # the mask belongs to that image
        for (image, mask), turns in seen:
            apart = [(one, other) for one, other in turns if one != other]
            if len(apart) >= _FEWEST_PAIRS:
                return UnpairedItem(
                    index=self.index,
                    image=image,
                    mask=mask,
                    mask_shape=tuple(first[mask].shape),
                    turns=tuple(dict.fromkeys(apart)),
                    pairs=len(turns),
                    apart=len(apart),
                    line=self._turning_line(len(draws)),
                )
        return None

    def _turning_line(self, draws: int) -> SourceSpan | None:
        for seed in range(1, draws + 1):
            with LineThatTurns(_is_picture, _turned) as line:
                self.draw(seed)
            if line.found is not None:
                return line.found
        return None


def parts_of(sample: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """The tensors, arrays and pictures of a sample, as plain tensors on the CPU."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from parts_of(value, f"{path}[{key!r}]", depth - 1) if depth else ()
    elif isinstance(sample, (list, tuple)):
        for number, value in enumerate(sample):
            yield from parts_of(value, f"{path}[{number}]", depth - 1) if depth else ()
    else:
        value = as_tensor(sample)
        if value is not None:
            yield path, value


def as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor, an array of numbers or a picture, over the same memory where it has one; None for
    anything else."""
    if isinstance(value, torch.Tensor):
        plain = is_plain(value) and value.device.type == "cpu" and not value.is_complex()
        return value.detach() if plain and value.numel() else None
    if type(value).__module__.partition(".")[0] not in ("numpy", "PIL"):
        return None
    import numpy as np

    if not isinstance(value, np.ndarray) and not hasattr(value, "__array_interface__"):
        return None
    array = np.asarray(value)
    readable = array.dtype.kind in "biuf" and array.dtype.isnative and array.size
    if not readable or not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy() if readable else array
    try:
        return torch.from_numpy(array) if readable else None
    except TypeError:  # a dtype that torch does not have
        return None


def shares_memory(dataset: Any) -> bool:
    """Some of what a data set keeps is shared between processes, or lies behind a connection that
    must not be used in two of them."""
    for _, value, _ in _walked(dataset, 0):
        if type(value).__module__.partition(".")[0] in _BETWEEN_PROCESSES:
            return True
        if isinstance(value, torch.Tensor) and (value.is_shared() or value.device.type != "cpu"):
            return True
        base = value.base if type(value).__module__ == "numpy" else None
        while type(base).__module__.partition(".")[0] == "numpy":
            base = getattr(base, "base", None)
        if type(value).__name__ == "memmap" or type(base).__name__ == "mmap":
            return True
        if type(base).__module__.partition(".")[0] in _BETWEEN_PROCESSES:
            return True
    return False


def _held(dataset: Any, index: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The arrays that a data set keeps for this sample, or for all."""
    left = _LARGEST
    for name, value, _ in _walked(dataset, index):
        tensor = _over_memory(value)
        if tensor is not None:
            left -= tensor.numel() * tensor.element_size()
            if left < 0:
                return
            yield name or "the data set", tensor


def _walked(dataset: Any, index: int) -> Iterator[tuple[str, Any, int]]:
    """(how it is named, what it is, the number of the sample in it) of what a data set keeps."""
    seen: dict[int, Any] = {}
    waiting: list[tuple[str, Any, int, int]] = [("", dataset, index, _DEPTH)]
    while waiting and len(seen) < _MOST_MET:
        name, value, number, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value  # held, so that its identity stays its own
        yield name, value, number
        if depth and not isinstance(value, torch.Tensor):
            waiting += [
                (f"{name}{key}", inner, other, depth - 1)
                for key, inner, other in _inside(value, number)
            ]


def _over_memory(value: Any) -> torch.Tensor | None:
    """Over the value's own memory, so that a change shows."""
    if isinstance(value, torch.Tensor):
        return as_tensor(value)
    flags = getattr(value, "flags", None)
    if type(value).__module__ == "numpy" and getattr(flags, "writeable", False):
        return as_tensor(value) if all(step >= 0 for step in value.strides) else None
    return None


def _inside(value: Any, index: int) -> Iterator[tuple[str, Any, int]]:
    """(how it is named, what it is, the number of the sample in it)"""
    if isinstance(value, (list, tuple)):
        for number in dict.fromkeys((index, *range(min(len(value), 8)))):
            if number < len(value):
                yield f"[{number}]", value[number], index
    elif isinstance(value, dict):
        keys = [key for key in (index, str(index)) if key in value]
        for key in dict.fromkeys([*keys, *itertools.islice(value, 8)]):
            yield f"[{key!r}]", value[key], index
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        if type(value).__module__.partition(".")[0] in ("numpy", "builtins"):
            return
        if isinstance(value, torch.utils.data.Subset):
            index = int(value.indices[index])
        for name, inner in list(vars(value).items()):
            yield f".{name}", inner, index


def _put_back(held: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in held.items():
            value.copy_(before[name])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _moved(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """By more than a hundredth of its size."""
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = one.double(), other.double()
    if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
        return False
    return float((first - second).norm()) > _CHANGED * float(first.norm())


def _image_and_mask(sample: Mapping[str, torch.Tensor]) -> list[tuple[str, str]] | None:
    """Pairs of parts of the same height and width, one of many values and one of classes."""
    masks = {path: _plane(part) for path, part in sample.items() if is_mask(part)}
    found = []
    for path, part in sample.items():
        picture = plane(part)
        if path in masks or picture is None or len(part.unique()) < 16:
            continue
        found += [
            (path, mask)
            for mask, flat in masks.items()
            if flat is not None and flat.shape == picture.shape
        ]
    return found or None


def _plane(mask: torch.Tensor) -> torch.Tensor | None:
    """A mask has one channel or none."""
    return mask.squeeze() if mask.squeeze().dim() == 2 else None


def _turns(
    draws: list[dict[str, torch.Tensor]], image: str, mask: str
) -> Iterator[tuple[str, str]]:
    """Of every pair of draws where one of them was turned and both could be told."""
    kept = [draw for draw in draws if image in draw and mask in draw]
    for one, other in itertools.combinations(kept, 2):
        pictures = plane(one[image]), plane(other[image])
        masks = _plane(one[mask]), _plane(other[mask])
        if pictures[0] is None or pictures[1] is None or masks[0] is None or masks[1] is None:
            continue
        turned = turn_of_image(pictures[0], pictures[1])
        beside = turn_of_mask(masks[0], masks[1]) if turned is not None else None
        if turned is not None and beside is not None and {turned, beside} != {AS_IT_WAS}:
            yield turned, beside


def _is_picture(value: Any) -> torch.Tensor | None:
    tensor = as_tensor(value)
    picture = plane(tensor) if tensor is not None else None
    return (
        picture.clone()
        if picture is not None and tensor is not None and (len(tensor.unique()) >= 16)
        else None
    )


def _turned(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and turn_of_image(one, other) not in (None, AS_IT_WAS)
