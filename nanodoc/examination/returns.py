"""What a policy gradient (REINFORCE, actor-critic) weights each action of an episode with.

The step is run once more. When it is differentiated, the gradient of the loss with respect to the
log-probabilities of the actions gives the weights. They are compared with discounted sums of each
list of numbers of the same length that the user's code holds at that moment: the rewards are among
them. Weights may be shifted and scaled (a baseline, normalised returns). Where they are no such
sums, what a critic is asked to say may be; its error then tells which way the weights go.

Source: Williams 1992, Simple statistical gradient-following algorithms for connectionist
reinforcement learning.
"""

from __future__ import annotations

import contextlib
import numbers
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from nanodoc.examination.discounted import (
    REVERSED,
    SO_FAR,
    SO_FAR_REVERSED,
    TO_GO,
    Order,
    order_of,
    same_way,
)
from nanodoc.examination.summing_loop import SummingLoop, asked_backwards, summing_loops
from nanodoc.facts.policy import ReturnFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.trace.calls import plain_name
from nanodoc.trace.frame_variables import attributes_of, names_in, users_frames
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import REGRESSION, RESHAPING

_FEWEST, _MOST = 8, 2_000  # actions of an episode
_MOST_FRAMES = 6
_MOST_LISTS = 8
_SPACES = ("action_space", "observation_space")
_MOST_LOSSES = 2  # of a step: a rollout is learnt from many times
_SAME_WEIGHT = (*RESHAPING, "neg", "squeeze", "unsqueeze", "getitem", "sum", "stack", "cat")


class ReturnsLook(TorchFunctionMode):
    """A context manager around a step that is run again; `facts` then says what was seen.
    `maximised` where the optimizer climbs."""

    def __init__(self, *, maximised: bool = False) -> None:
        super().__init__()
        self.facts: ReturnFacts | None = None
        self._maximised = maximised
        self._log_probs: list[torch.Tensor] = []
        self._draws: dict[int, tuple[Any, list[Any]]] = {}
        """What each distribution was asked to draw, by its identity."""
        self._later: list[bool] = []
        """Of each log-probability: it is that of a draw before which there was another one."""
        self._asked: deque[tuple[list[float], list[float]]] = deque(maxlen=_MOST_LISTS)
        """What a critic is to say, and how much more that is than what it says."""
        self._weightless: dict[int, Any] = {}
        """Log-probabilities that are not weighted yet, by identity."""
        self._weighted_at: SourceSpan | None = None
        self._asked_at: Place | None = None
        """The first call of a log_prob."""
        self._left = _MOST_LOSSES
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> ReturnsLook:
        super().__enter__()
        for kind in _kinds(Distribution):
            for name, watched in (("log_prob", self._log_prob), ("sample", self._sample)):
                if isinstance(original := vars(kind).get(name), FunctionType):
                    with contextlib.suppress(Exception):  # a class that refuses
                        setattr(kind, name, watched(original))
                        self._undo.append(partial(setattr, kind, name, original))
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        while self._undo:
            self._undo.pop()()
        self._log_probs, self._weightless, self._draws = [], {}, {}

    def _sample(self, original: Callable[..., Any]) -> Callable[..., Any]:
        look = self

        def sample(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            if args:
                look._draws.setdefault(id(args[0]), (args[0], []))[1].append(value)
            return value

        return sample

    def _log_prob(self, original: Callable[..., Any]) -> Callable[..., Any]:
        look = self

        def log_prob(*args: Any, **kwargs: Any) -> Any:
            before = len(look._log_probs)
            value = original(*args, **kwargs)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                # not those of the distributions that this one is made of
                look._log_probs[before:] = [value]
                _, draws = look._draws.get(id(args[0]), (None, []))
                look._later[before:] = [any(args[-1] is draw for draw in draws[1:])]
                if look._asked_at is None:
                    own, caller = calling_places(2)
                    look._asked_at = caller or own
                look._weightless[id(value)] = value
            return value

        return log_prob

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.facts is not None or current_autograd_node() is not None:
            return call(func, *args, **kwargs)
        name = plain_name(func)
        out = call(func, *args, **kwargs)
        if name in (*REGRESSION, "sub") and len(args) > 1:
            self._note_asked(*args[:2])
        if name in (*_SAME_WEIGHT, "mul") and self._are_weightless(args):
            if name in _SAME_WEIGHT or any(_is_for_all(arg) for arg in args):
                self._weightless[id(out)] = out
            elif self._weighted_at is None:
                own, caller = calling_places(2)
                place = caller or own
                self._weighted_at = resolved(place)
        return out

    def _note_asked(self, one: Any, other: Any) -> None:
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            return
        # those of single steps come in any order
        alike = one.numel() == other.numel() and _FEWEST <= one.numel() <= _MOST
        if alike and one.requires_grad != other.requires_grad:
            said, asked = (one, other) if one.requires_grad else (other, one)
            targets = _plain(asked)
            errors = [target - value for target, value in zip(targets, _plain(said), strict=True)]
            self._asked.append((targets, errors))

    def _are_weightless(self, args: Sequence[Any]) -> bool:
        given = [arg[0] if isinstance(arg, (list, tuple)) and arg else arg for arg in args]
        return any(id(arg) in self._weightless for arg in given)

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        if self.facts is None and self._log_probs and self._left:
            self._left -= 1
            with DisableTorchFunction(), torch.enable_grad():
                self._compare(self._weights(loss))

    def _compare(self, weights: list[float]) -> None:
        if not _FEWEST <= len(weights) <= _MOST:
            return
        frames = list(islice(users_frames(), _MOST_FRAMES))
        lists = list(_lists(frames, len(weights)))
        found = _orders(weights, lists)
        if not found:
            for targets, errors in self._asked:
                found = _orders(targets, lists)
                if found and found[0][0].rising:
                    rises = same_way(weights, errors)
                    if found[0][0].order == TO_GO and rises is False:
                        found = [(replace(order, rising=False), name) for order, name in found]
                    break
        if found:
            self.facts = self._told(*found[0], len(weights), frames)

    def _told(
        self, order: Order, name: str, count: int, frames: Sequence[FrameType]
    ) -> ReturnFacts | None:
        files = dict.fromkeys(frame.f_code.co_filename for frame in frames)
        loops = [loop for file in files for loop in summing_loops(file)]
        wrong = [loop for loop in loops if _makes(loop, order)]
        if order.order == SO_FAR and loops and not wrong:  # the same as falling sums to go
            order = Order(TO_GO, not order.rising, order.discount)
        at = None
        if len(wrong) == 1:
            at = wrong[0].stored_at if wrong[0].backwards else wrong[0].at
        # a loop from the last step to the first asks in that order, too
        if order.order != TO_GO and len(self._log_probs) > 1:
            place = resolved(self._asked_at)
            if at is None or place is None or asked_backwards(self._asked_at):
                return None
        return ReturnFacts(
            actions=count,
            rewards=name,
            of_environment=any(map(_is_environment, dict(_variables(frames)).values())),
            discount=order.discount,
            order=order.order,
            rising=order.rising,
            summed_at=at,
            weighted_at=self._weighted_at,
            redrawn=sum(self._later),
            asked_at=resolved(self._asked_at),
        )

    def _weights(self, loss: torch.Tensor) -> list[float]:
        """What a step raises the log-probabilities with, in the order of the actions."""
        try:
            slopes = torch.autograd.grad(
                loss, self._log_probs, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that cannot be walked twice
            return []
        sign = 1.0 if self._maximised else -1.0
        given = [slope for slope in slopes if slope is not None]
        if len(given) > 1 and {slope.shape[:1] for slope in given} == {given[0].shape[:1]}:
            given = [_of_two(slope) for slope in given]
        return [sign * x for slope in given for x in _plain(slope)]


def _orders(
    wanted: Sequence[float], lists: Sequence[tuple[list[float], str]]
) -> list[tuple[Order, str]]:
    """(what these numbers are sums of, its name); first a list for which all is right, which is the
    rewards."""
    found = [
        (order, name) for rewards, name in lists if (order := order_of(wanted, rewards)) is not None
    ]
    return sorted(found, key=lambda each: each[0].order != TO_GO or not each[0].rising)


def _makes(loop: SummingLoop, order: Order) -> bool:
    """The loop may have put the sums in that order."""
    if order.order == SO_FAR_REVERSED:
        return loop.in_front and not loop.backwards
    return not loop.in_front and (loop.backwards or order.order != REVERSED)


def _is_for_all(factor: Any) -> bool:
    """A sign, which is no weight of one action."""
    return isinstance(factor, (int, float)) and abs(factor) == 1


def _kinds(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _lists(frames: Iterable[FrameType], count: int) -> Iterator[tuple[list[float], str]]:
    """(numbers, how they are named) of each list of so many numbers that the frames' variables are,
    or hold as an attribute."""
    left, seen = _MOST_LISTS, set()
    for name, value in _variables(frames):
        if id(value) in seen:
            continue
        seen.add(id(value))
        found = None
        with contextlib.suppress(Exception):  # any object's own length, shape and numbers
            found = _numbers(value, count)
        if found is not None:
            left -= 1
            yield found, name
        if not left:
            return


def _variables(frames: Iterable[FrameType]) -> Iterator[tuple[str, Any]]:
    for frame in frames:
        for name, value in names_in(frame).items():
            yield name, value
            for key, part in attributes_of(value).items():
                yield f"{name}.{key}", part


def _is_environment(value: Any) -> bool:
    """It has what Gymnasium's environments have, whose second answer to `step` is the reward."""
    kind, parts = type(value), attributes_of(value)
    steps = all(callable(getattr(kind, name, None)) for name in ("reset", "step"))
    return steps and all(name in parts or hasattr(kind, name) for name in _SPACES)


def _numbers(value: Any, count: int) -> list[float] | None:
    """None for what is no list of so many numbers. Raises what the object raises."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        single = getattr(value, "requires_grad", False)
        size: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        if len(size) == 2 and size[0] == count and size[1] > 1 and not single:
            return _plain(torch.as_tensor(value)[:, 0] - torch.as_tensor(value)[:, 1])
        if single or not size or max(size) != count or sum(n != 1 for n in size) > 1:
            return None
        return _plain(torch.as_tensor(value)) if len(size) <= 3 else None
    if not isinstance(value, (list, tuple, deque)) or len(value) != count:
        return None
    found = []
    for item in value:
        if getattr(item, "requires_grad", False):
            return None
        if getattr(item, "ndim", 0) == 1 and len(item) > 1:
            item = _of_two(torch.as_tensor(item))
        item = item.item() if hasattr(item, "item") else item
        if isinstance(item, bool) or not isinstance(item, numbers.Real):
            return None
        found.append(float(item))
    return found


def _of_two(values: torch.Tensor) -> torch.Tensor:
    """Of several environments that run side by side, the first less the second: sums of rewards
    stay sums, and what is subtracted from all of them at one step is gone."""
    return values[0] - values[1] if values.dim() == 1 and len(values) > 1 else values


def _plain(tensor: torch.Tensor) -> list[float]:
    return [float(x) for x in tensor.detach().flatten().tolist()]
