"""Values that are held within bounds and that the step pushes further out of them all the same.

PPO's ratio is the best known: of a term with a value and the same term with that value clamped, the
worse of the two is taken, so that nothing is gained beyond the bounds. Where the better one is
taken, the clamp holds nothing back. The step is run once more, and the gradient of the loss with
respect to what is clamped is compared with the bounds; where that tells nothing, once again with
the values put beyond their bounds, half of them on either side.

Source: Schulman et al. 2017, Proximal policy optimization algorithms, equation 7.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.policy import PushedFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.trace.calls import plain_name
from nanodoc.vocabulary.calls import OF_TWO

_CLAMP = "clamp"
_STACKING = ("stack", "cat")
_LEARNS = "clamp of what has a gradient"
Bounds = tuple[float, float]


def bounded(calls: StepCalls) -> Iterator[tuple[int, CallFacts, CallFacts]]:
    """(place among the clamps of what has a gradient, the clamp, the choice between a value that is
    made of what it gives and one that is made of what it is given)"""
    reaching = calls.reaching_the_loss()
    choices = [one for one in calls.calls if one.name in OF_TWO and one.index in reaching]
    for place, clamp in enumerate(c for c in calls.calls if _learns(c)):
        for choice in choices:
            sides = _sides(calls, choice)
            if len(sides) == 2 and _one_is_clamped(calls, sides, clamp):
                yield place, clamp, choice
                break


def _learns(made: CallFacts) -> bool:
    return made.name == _CLAMP and bool(made.arguments) and made.arguments[0].requires_grad


def _sides(calls: StepCalls, choice: CallFacts) -> list[set[int]]:
    """What each of the two values was made of: they are arguments, or were stacked."""
    made = choice
    if len(made.arguments) == 1 and (stacked := calls.maker(made.arguments[0])) is not None:
        if stacked.name not in _STACKING:
            return []
        made = stacked
    return [calls.behind(argument)[0] for argument in made.arguments]


def _one_is_clamped(calls: StepCalls, sides: list[set[int]], clamp: CallFacts) -> bool:
    value = clamp.arguments[0].made_by
    within = [clamp.index in side for side in sides]
    return within.count(True) == 1 and value is not None and value in sides[within.index(False)]


class PushedOutLook(TorchFunctionMode):
    """A context manager around a step that is run again; `facts` then says what was pushed out of
    its bounds, if something was. `maximised` where the optimizer climbs. `moved`: bounds by the
    clamp's place, as `bounds` of an earlier look; its values are put beyond them."""

    def __init__(
        self, calls: StepCalls, moved: Mapping[int, Bounds], *, maximised: bool = False
    ) -> None:
        super().__init__()
        self.facts: PushedFacts | None = None
        self.bounds: dict[int, Bounds] = {}
        found = list(bounded(calls))
        self._choices = {place: choice for place, _, choice in found}
        self._chosen = {calls.among_its_name(choice): place for place, _, choice in found}
        self._made = {
            calls.among_its_name(made): moved[place]
            for place, clamp, _ in found
            if place in moved and (made := calls.maker(clamp.arguments[0])) is not None
        }
        self._maximised = maximised
        self._seen: Counter[str] = Counter()
        self._values: dict[int, torch.Tensor] = {}
        """What is clamped, by the clamp's place,"""
        self._taken: dict[int, torch.Tensor] = {}
        """and what is taken of the two terms, if it has one value for each of these;"""
        self._falls: dict[int, torch.Tensor] = {}
        """the gradient that the step's own backward has of that,"""
        self._slopes: dict[int, torch.Tensor] = {}
        """and how that changes with the value."""

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        with torch.no_grad(), DisableTorchFunction():
            for place in self._falls.keys() & self._slopes.keys():
                slope = self._falls[place] * self._slopes[place]
                self.facts = self.facts or self._told(place, slope)
        for kept in (self._values, self._taken, self._falls, self._slopes):
            kept.clear()

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, plain_name(func)
        if current_autograd_node() is not None:
            return call(func, *args, **kwargs)
        value = args[0] if args else kwargs.get("input")
        if name == _CLAMP and isinstance(value, torch.Tensor) and value.requires_grad:
            self._note(value, args, kwargs)
        out = call(func, *args, **kwargs)
        key = (name, self._seen[name])
        self._seen[name] += 1
        if key in self._chosen:
            self._note_taken(self._chosen[key], out)
        beyond = self._made.get(key)
        if beyond is None or not isinstance(out, torch.Tensor):
            return out
        return _beyond(out, *beyond)

    def _note(self, value: torch.Tensor, args: Any, kwargs: Any) -> None:
        place, self._seen[_LEARNS] = self._seen[_LEARNS], self._seen[_LEARNS] + 1
        least = kwargs.get("min", args[1] if len(args) > 1 else None)
        most = kwargs.get("max", args[2] if len(args) > 2 else None)
        numbers = isinstance(least, (int, float)) and isinstance(most, (int, float))
        if place in self._choices and numbers:
            self.bounds[place] = (least, most)
            self._values[place] = value

    def _note_taken(self, place: int, out: Any) -> None:
        taken = out[0] if isinstance(out, tuple) else out
        value = self._values.get(place)
        if value is not None and taken.shape == value.shape and taken.requires_grad:
            self._taken[place] = taken

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        with DisableTorchFunction(), torch.enable_grad():
            for place, taken in self._taken.items():
                if place in self._slopes:
                    continue
                with contextlib.suppress(RuntimeError):  # a graph that cannot be walked twice
                    (slope,) = torch.autograd.grad(
                        taken.sum(), self._values[place], retain_graph=True, allow_unused=True
                    )
                    if slope is not None:
                        self._slopes[place] = slope
                        # a loss may be differentiated with a gradient of its own, such as -1
                        taken.register_hook(partial(self._differentiated, place))

    def _differentiated(self, place: int, gradient: torch.Tensor) -> None:
        self._falls.setdefault(place, gradient.detach())

    def _told(self, place: int, slope: torch.Tensor) -> PushedFacts | None:
        value, choice = self._values[place].detach(), self._choices[place]
        least, most = self.bounds[place]
        up = slope if self._maximised else -slope  # where a step takes the value
        above, below = value > most, value < least
        pushed = (above & (up > 0)) | (below & (up < 0))
        if not bool(pushed.any()):
            return None
        return PushedFacts(
            values=value.numel(),
            outside=int((above | below).sum()),
            pushed=int(pushed.sum()),
            moved=bool(self._made),
            chosen=choice.name,
            chosen_at=choice.site,
        )


def _beyond(out: torch.Tensor, least: float, most: float) -> torch.Tensor:
    """The values, every other one a little beyond the upper bound, and the rest beyond the lower
    one, on the same side of zero as that: a ratio of probabilities stays above it."""
    margin = (most - least) / 4
    low = least / 2 if 0 < least <= margin else least - margin
    upper = torch.arange(out.numel(), device=out.device).reshape(out.shape) % 2 == 0
    wanted = torch.where(upper, most + margin, low).to(out.dtype)
    return out + (wanted - out.detach())
