"""Modules that a step, or a module of the user's, gives pictures to before the model reads them,
such as augmentations of a library: whether those that got an image and those that got its mask did
the same to both."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nanodoc.examination.orientation import is_mask, plane, turn_of_image, turn_of_mask
from nanodoc.facts.inspection import AugmentedApart
from nanodoc.facts.items import AS_IT_WAS
from nanodoc.instrument.originals import ours
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.returned import code_of
from nanodoc.trace.spans import Place, calling_places, resolved

_MOST_CALLS = 8
_MOST_SAMPLES = 16
_FEWEST = 3  # samples that lie otherwise than their masks
_EMPTY = 0.7  # of what a mask leaves empty
_BATCH = 4  # dimensions: samples, channels, height, width

_Drawn = tuple[bytes, int, str]


@dataclass(frozen=True, slots=True)
class _Call:
    module: torch.nn.Module
    drew: bool
    """It drew random numbers."""
    before: torch.Tensor
    after: torch.Tensor
    place: Place | None


class Augmentations:
    """Notes what such modules are given and return, while a step runs."""

    def __init__(self) -> None:
        self._around: list[tuple[torch.nn.Module, _Drawn | None]] = []
        self._calls: list[_Call] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Open while the step runs."""
        before = register_module_forward_pre_hook(self._entered)
        after = register_module_forward_hook(self._left, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @ours
    def _entered(self, module: torch.nn.Module, args: Any) -> None:
        self._around.append((module, _state() if args and _is_batch(args[0]) else None))

    @ours
    def _left(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        state = self._around.pop()[1] if self._around else None
        given = args[0] if args else None
        if len(self._calls) >= _MOST_CALLS:
            return
        if isinstance(output, (list, tuple)) and len(output) == 1:
            output = output[0]
        if not isinstance(given, torch.Tensor) or not isinstance(output, torch.Tensor):
            return
        if _is_batch(given) and output.shape == given.shape and not output.requires_grad:
            own, caller = calling_places(2)
            if self._around and not _is_users(self._around[-1][0]):
                return
            drew = state is not None and state != _state()
            self._calls.append(_Call(module, drew, given, output, caller or own))

    def apart(self) -> AugmentedApart | None:
        """Two calls of one class, one of them with masks, that turned the samples of a batch each
        in its own way; None where they belong together, or where that can't be told."""
        with contextlib.suppress(Exception):  # tensors of any class
            for image in self._calls:
                for mask in self._calls:
                    found = _apart(image, mask) if mask is not image else None
                    if found is not None:
                        return found
            for image, mask in itertools.combinations(self._calls, 2):
                found = _drawn_apart(image, mask)
                if found is not None:
                    return found
        return None


def _is_batch(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == _BATCH


def _state() -> _Drawn:
    """Of the random numbers that an augmentation may draw."""
    numpy = sys.modules.get("numpy")
    numbers = numpy.random.get_state(legacy=False) if numpy is not None else None
    return torch.get_rng_state().numpy().tobytes(), hash(random.getstate()), str(numbers)


def _drawn_apart(image: _Call, mask: _Call) -> AugmentedApart | None:
    """One module that got images and then masks, drew random numbers for each, and moved masks: a
    rotation by two angles, say, which no mirror or quarter turn undoes."""
    one, other = image.before, mask.before
    same = one.shape[0] == other.shape[0] and one.shape[2:] == other.shape[2:]
    if image.module is not mask.module or not (image.drew and mask.drew and same):
        return None
    if any(is_mask(picture) for picture in one[:_MOST_SAMPLES].detach().cpu()):
        return None
    pairs = zip(
        other[:_MOST_SAMPLES].detach().cpu(), mask.after[:_MOST_SAMPLES].detach().cpu(), strict=True
    )
    moved = sum(is_mask(before) and _moved(before, after) for before, after in pairs)
    if moved < _FEWEST:
        return None
    return AugmentedApart(
        samples=moved,
        apart=moved,
        drawn=True,
        image_at=resolved(image.place),
        mask_at=resolved(mask.place),
    )


def _moved(before: torch.Tensor, after: torch.Tensor) -> bool:
    """The marks lie elsewhere, about as many as before, and the rest is empty as it was; noise, or
    a change of brightness, fills it."""
    value = before.flatten().mode().values
    kept, share = float((after == value).float().mean()), float((before == value).float().mean())
    return not torch.equal(before, after) and _EMPTY * share <= kept < 1


def _is_users(module: torch.nn.Module) -> bool:
    """Its forward() is the user's own code."""
    code = code_of(getattr(type(module), "forward", None))
    return code is not None and frame_kind(code.co_filename) == USER


def _apart(image: _Call, mask: _Call) -> AugmentedApart | None:
    one, other = image.before, mask.before
    same = one.shape[0] == other.shape[0] and one.shape[2:] == other.shape[2:]
    if type(image.module) is not type(mask.module) or not same:
        return None
    told = apart = 0
    for picture, turned, marks, moved in zip(
        image.before[:_MOST_SAMPLES].detach().cpu(),
        image.after[:_MOST_SAMPLES].detach().cpu(),
        mask.before[:_MOST_SAMPLES].detach().cpu(),
        mask.after[:_MOST_SAMPLES].detach().cpu(),
        strict=True,
    ):
        planes = [plane(value) for value in (picture, turned, marks, moved)]
        if any(value is None for value in planes) or is_mask(picture) or not is_mask(marks):
            continue
        first, second, third, fourth = planes
        ways = turn_of_image(second, first), turn_of_mask(fourth, third)  # type: ignore[arg-type]  # none is None
        if None in ways:
            continue
        told += ways != (AS_IT_WAS, AS_IT_WAS)
        apart += ways[0] != ways[1]
    if apart < _FEWEST:
        return None
    return AugmentedApart(
        samples=told, apart=apart, image_at=resolved(image.place), mask_at=resolved(mask.place)
    )
