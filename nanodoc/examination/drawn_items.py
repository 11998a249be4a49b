"""Single samples of a data set, drawn again and again: does a draw change what the data set keeps,
and what do draws and their sampler show? Whoever asks does so in a process of its own: the data set
may change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from nanodoc.examination.blurred_masks import blurred_mask
from nanodoc.examination.joined_graphs import unshifted_edges
from nanodoc.examination.kept import held_arrays, walked
from nanodoc.examination.lines_that import LineThatWrites
from nanodoc.examination.making import Source
from nanodoc.examination.mixed_pictures import mixed_picture
from nanodoc.examination.overlap import split_overlap
from nanodoc.examination.reordered import reordered_batch
from nanodoc.examination.sample import Sample, parts_of, same
from nanodoc.examination.sampling import skewed_sampling
from nanodoc.examination.stray_edges import stray_edge
from nanodoc.examination.uncollated import uncollated
from nanodoc.examination.unpaired import unpaired_item
from nanodoc.examination.worker_draws import repeated_draws
from nanodoc.facts.items import ChangingItem
from nanodoc.facts.source import SourceSpan
from nanodoc.replay.random_sources import seed_source
from nanodoc.trace.made_with import writes_in_place

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
    left = {"unpaired": unpaired_item, "blurred": blurred_mask, "mixed": mixed_picture}
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
        reordered = None
        with contextlib.suppress(Exception):  # a collate function of samples it has not seen
            reordered = reordered_batch(source.dataset, source.collate, until)
        yield "reordered", reordered
        unread = None
        with contextlib.suppress(Exception):
            unread = uncollated(source.dataset, source.collate, source.batch, until)
        yield "uncollated", unread
        unshifted = None
        with contextlib.suppress(Exception):
            unshifted = unshifted_edges(source.dataset, source.collate)
        yield "unshifted", unshifted
        yield "stray", stray_edge(source.dataset, until)
        yield "sampling", skewed_sampling(source.dataset, source.sampler, until)
        yield "overlap", split_overlap(source.dataset, source.validated_on, until)


class _Drawn(Sample):
    """What successive draws of it show."""

    def draw(self, seed: int) -> dict[str, torch.Tensor]:
        """As any sample, with the generators that the data set keeps for itself, too: those of
        libraries of augmentations begin at random."""
        for _, value, _ in walked(self.dataset, self.index):
            seed_source(value, seed)
        return super().draw(seed)

    # -- a sample that changes ---------------------------------------------------------------------

    def changing(self) -> ChangingItem | None:
        """The causal test: the draw writes into an array, the next draw of the sample differs, and
        with the old content put back it does not."""
        self.draw(0)  # a data set may fill a cache when it is first asked
        held = dict(held_arrays(self.dataset, self.index))
        before = {name: value.clone() for name, value in held.items()}
        # a draw that blanks a random part gives the same sample again by the same random numbers
        found = self._changed_by(0, held, before) or self._changed_by(1, held, before)
        if found is None and self.in_time() and (spoilt := self._written_over(held)):
            # a whole training may have left nothing to write over
            for value in spoilt:
                value.uniform_()
            fresh = {name: value.clone() for name, value in held.items()}
            found = self._changed_by(1, held, fresh)
            _put_back(held, before)
            found = replace(found, filled=True) if found is not None else None
        return found

    def _written_over(self, held: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """What the draw writes into and gives away as the sample itself, though it changes
        nothing by now."""
        versions = [value._version for value in held.values()]
        self.draw(0)
        return [
            value
            for value, version in zip(held.values(), versions, strict=True)
            if value._version != version and value.is_floating_point() and self._gives_away(value)
        ]

    def _gives_away(self, held: torch.Tensor) -> bool:
        """The sample lies in the memory of what is held."""
        begin = held.data_ptr()
        end = begin + held.numel() * held.element_size()
        return any(begin <= p.data_ptr() < end for _, p in parts_of(self.dataset[self.index]))

    def _changed_by(
        self, seed: int, held: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
    ) -> ChangingItem | None:
        """What a draw by these random numbers does to the one that follows it."""
        _put_back(held, before)
        first = self.draw(0)
        if seed:
            _put_back(held, before)
            self.draw(seed)
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
        if 2 * changed[name] < first[part].numel() and not self._gives_away(held[name]):
            return None  # a counter, a pointer: it is not the sample that is written
        return ChangingItem(
            index=self.index,
            holder=name,
            part=part,
            ranges=tuple((float(values.min()), float(values.max())) for values in shown),
            line=self._writing_line(held, before, name, seed),
        )

    def _writing_line(
        self,
        held: Mapping[str, torch.Tensor],
        before: Mapping[str, torch.Tensor],
        name: str,
        seed: int,
    ) -> SourceSpan | None:
        value, old = held[name], before[name]
        _put_back(held, before)
        self.draw(seed)
        places = (value != old).nonzero()
        if not len(places):
            return None
        place = tuple(int(number) for number in places[0])
        _put_back(held, before)
        with LineThatWrites(lambda: value[place].item()) as line:
            self.draw(seed)
        # what a library's transform writes into a picture, it was told to
        by_transform = line.found is not None and "transform" in line.found.code
        return (writes_in_place() if by_transform else None) or line.found


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
