"""Single samples of a data set, drawn again and again: does a draw change what the data set keeps,
and are an image and its mask turned alike? Whoever asks does so in a process of its own: the data
set may change."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from nanodoc.examination.blurred_masks import blurred_mask
from nanodoc.examination.kept import held_arrays
from nanodoc.examination.lines_that import LineThatTurns, LineThatWrites
from nanodoc.examination.making import Source
from nanodoc.examination.orientation import is_mask, plane, turn_of_image, turn_of_mask
from nanodoc.examination.overlap import split_overlap
from nanodoc.examination.sample import Sample, as_tensor, same
from nanodoc.examination.sampling import skewed_sampling
from nanodoc.examination.worker_draws import repeated_draws
from nanodoc.facts.items import AS_IT_WAS, ChangingItem, UnpairedItem
from nanodoc.facts.source import SourceSpan

_DRAWS = 12
_FEWEST_PAIRS = 3
"""Pairs of draws, of one sample, whose image and mask lie differently: a picture that looks alike
from two sides gives one."""
_CHANGED = 0.01
"""Of a sample's own size: what a draw changes on purpose, such as a mean over all samples so far,
moves one sample by far less."""


def look_at_items(source: Source, seconds: float) -> Iterator[tuple[str, Any]]:
    """(a field of `ItemFacts`, what was found for it): draws some samples for at most about
    `seconds`. Raises what the data set raises when it is asked first."""
    until = time.monotonic() + seconds
    size = len(source.dataset)
    if not size:
        return
    # before any draw in this process, which a data set may begin its random numbers with
    repeated = None
    with contextlib.suppress(Exception):
        repeated = repeated_draws(source, Sample(source.dataset, 0, until))
    yield "repeated", repeated
    left = {"unpaired": _Drawn.unpaired, "blurred": blurred_mask}
    for index in sorted({0, size // 3, size - 1}):
        if time.monotonic() > until:
            break
        drawn = _Drawn(source.dataset, index, until)
        if (changing := drawn.changing()) is not None:
            yield "changing", changing
            return  # what is drawn after that is no sample of the training's
        for name, look in list(left.items()):
            if (found := look(drawn)) is not None:
                del left[name]
                yield name, found
    if time.monotonic() < until:
        yield "sampling", skewed_sampling(source.dataset, source.sampler, until)
        yield "overlap", split_overlap(source.dataset, source.validated_on, until)


class _Drawn(Sample):
    """What successive draws of it show."""

    # -- a sample that changes ---------------------------------------------------------------------

    def changing(self) -> ChangingItem | None:
        """The causal test: the draw writes into an array, the next draw of the sample differs, and
        with the old content put back it does not."""
        self.draw(0)  # a data set may fill a cache when it is first asked
        held = dict(held_arrays(self.dataset, self.index))
        before = {name: value.clone() for name, value in held.items()}
        first = self.draw(0)
        written = [name for name, value in held.items() if not same(value, before[name])]
        if not written or not self.in_time():
            return None
        second = self.draw(0)
        part = next((path for path in first if _moved(first[path], second.get(path))), None)
        if part is None:
            return None
        shown = [values[part] for values in (first, second, self.draw(0)) if part in values]
        _put_back(held, before)
        again = self.draw(0)
        if part not in again or not same(again[part], first[part]):
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


def _put_back(held: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in held.items():
            value.copy_(before[name])


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
