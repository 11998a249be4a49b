"""Calls of a step that may be made in another way, and the step with one of them made so.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.experiments.call_site import Applied, AtCall
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.trace.calls import plain_name
from nanodoc.trace.ranges import RANGED, out_of_range
from nanodoc.trace.spans import Place, calling_places

look_through(__file__)

Change = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to change a call."""

    text: str
    """What the call is then, as the report says it: "dim=1"."""
    was: str
    change: Change


def left_out(name: str) -> Variant:
    """The call gives back its first argument."""
    return Variant(f"without {name}()", "", lambda func, args, kwargs: args[0])


@dataclass(frozen=True, slots=True)
class Site:
    """What a line of the user's calls, all times that it is run."""

    name: str
    place: Place
    variants: tuple[Variant, ...]
    """Of the arguments that it is called with."""
    after: tuple[Variant, ...] = ()
    """Of what it gives."""


Before = Callable[[Any, str, Any, Any], Iterable[Variant]]
After = Callable[[Any, str, Any, Any, torch.Tensor], Iterable[Variant]]


class Sites(TorchFunctionMode):
    """Notes the calls of a step, also one that raises; the latest come last."""

    def __init__(self, before: Before, after: After) -> None:
        super().__init__()
        self._before, self._after = before, after
        self.found: dict[tuple[str, Place], Site] = {}

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, plain_name(func)
        variants = tuple(self._before(func, name, args, kwargs))
        # noted before it is called: the call that raises may be the one
        key = self._noted(name, variants)
        out = call(func, *args, **kwargs)
        if key is not None and isinstance(out, torch.Tensor) and not out.is_nested:
            after = tuple(self._after(func, name, args, kwargs, out))
            self.found[key] = Site(name, key[1], variants, after)
        return out

    def _noted(self, name: str, variants: tuple[Variant, ...]) -> tuple[str, Place] | None:
        own, caller = calling_places(3)
        place = caller or own
        if place is None or name in ("get", "set"):
            return None
        self.found.pop((name, place), None)
        self.found[name, place] = Site(name, place, variants)
        return name, place


class _InRange(TorchFunctionMode):
    """Raises IndexError where a changed step is about to index out of range. A kernel of an
    accelerator would end in an assert instead, after which the process cannot use the device."""

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, plain_name(func)
        if name in RANGED and (found := out_of_range(name, args, kwargs, None)) is not None:
            raise IndexError(f"index {found.value} is out of range for {found.size} in {name}")
        return call(func, *args, **kwargs)


@contextmanager
def changed_at(site: Site, where: SourceSpan, variant: Variant, applied: Applied) -> Iterator[None]:
    """A step in which all calls of this site are made in that way."""

    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if plain_name(func) != site.name:
            return call(func, *args, **kwargs)
        applied.yes = True
        return variant.change(func, args, kwargs)

    with _InRange(), AtCall(where, change):  # the call as it is changed is judged, too
        yield
