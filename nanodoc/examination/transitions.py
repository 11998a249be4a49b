"""Which targets of a regression read a network's value of the next state, and of which samples the
episode goes on.

Both are measured. The step is run again with the next states of other samples: a target that reads
the value of its own changes. An episode goes on behind a sample whose next state is, value by
value, the state of another sample: of the batch, or of what the user's code keeps beside its steps
(a list of transitions, or arrays of states).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import fmean, pstdev
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.bootstrapped import Bootstrapped, joined, readers
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.policy import TransitionFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.tensors.plain import first_data
from nanodoc.trace.calls import plain_name
from nanodoc.trace.frame_variables import (
    attributes_of,
    names_in,
    users_frames,
    variables_of_frame,
)

_FEWEST = 8  # samples of a batch
_MOST_FRAMES = 6
_MOST_ROWS = 50_000  # of a list that are looked through
_MOST_NUMBERS = 20_000_000  # that are copied
_FAR = 2.0  # standard deviations of what is paid where an episode goes on
_MOST_PARTS = 32
_KNOWN = 0.9  # share of the next states that a column must hold to be theirs


Change = Callable[[torch.Tensor], torch.Tensor]


def exchanged(states: torch.Tensor) -> torch.Tensor:
    """Each sample has another sample's."""
    return states.roll(1, 0)


def moved(states: torch.Tensor) -> torch.Tensor:
    """All of them somewhere else; ids as they are."""
    return 1.5 * states + states.std() if states.is_floating_point() else states


class TransitionsLook(TorchFunctionMode):
    """A context manager around a step that is run again. `change` makes other next states of those
    that a network is given: `exchanged`, or `moved`."""

    def __init__(self, calls: StepCalls, found: Bootstrapped, change: Change | None = None) -> None:
        super().__init__()
        self._change = change
        self._after = {calls.among_its_name(made) for made in readers(calls, found.value)}
        self._before = {calls.among_its_name(made) for made in readers(calls, found.predicted)}
        self._joined = {
            (*calls.among_its_name(made), at) for made, at in joined(calls, found.value)
        }
        self._loss = calls.among_its_name(found.loss)
        self._total = calls.among_its_name(found.total)
        self._paid = int(found.total.arguments[0] == found.value)
        self._at = 0 if not found.loss.arguments[0].requires_grad else 1
        self._seen: Counter[str] = Counter()
        self.states: torch.Tensor | None = None
        self.next_states: torch.Tensor | None = None
        self.targets: torch.Tensor | None = None
        self.known: set[bytes] = set()
        """The states that the user's code keeps beside its steps."""
        self.rewards: list[float] = []
        """What each target is made of beside the value of the next state."""
        self.flags: dict[str, list[bool]] = {}
        """What the user's code holds of zeros and ones, one a sample, where the loss is called."""

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, plain_name(func)
        if current_autograd_node() is not None:
            return call(func, *args, **kwargs)
        key = (name, self._seen[name])
        self._seen[name] += 1
        at = first_data(args) if key in self._before | self._after else None
        if key in self._before and at is not None and self.states is None:
            self.states = args[at].detach()
        elif key in self._after and at is not None:
            self.next_states = args[at].detach()
            if self._change is not None:
                args = (*args[:at], self._change(args[at]), *args[at + 1 :])
        elif self._change is not None and name == "cat" and isinstance(args[0], (list, tuple)):
            parts = [
                self._change(part) if (*key, at) in self._joined else part
                for at, part in enumerate(args[0])
            ]
            args = (parts, *args[1:])
        elif key == self._total and len(args) > self._paid and self._change is None:
            if isinstance(args[self._paid], torch.Tensor):
                self.rewards = [float(x) for x in args[self._paid].detach().flatten().tolist()]
        elif key == self._loss and len(args) > self._at:
            self.targets = args[self._at].detach().clone()
            if self._change is None and self.next_states is not None:
                with DisableTorchFunction():
                    self.known = _kept_states(self.next_states, users_frames())
                    self.flags = _flags(len(self.next_states), users_frames())
        return call(func, *args, **kwargs)


def transitions(
    plain: TransitionsLook, exchanged: TransitionsLook, moved: TransitionsLook
) -> TransitionFacts | None:
    """What the three runs of the step tell; None of targets that are not one for each next
    state."""
    after, targets, others = plain.next_states, plain.targets, exchanged.targets
    if after is None or targets is None or others is None or targets.shape != others.shape:
        return None
    count = len(after)
    if count < _FEWEST or targets.dim() == 0 or targets.numel() != count:
        return None
    known = set(plain.known)
    if plain.states is not None and plain.states.shape[1:] == after.shape[1:]:
        known |= set(_rows(plain.states))
    rows = _rows(after)
    # exchanged for one that is the same, it tells nothing
    asked = [row != rows[index - 1] for index, row in enumerate(rows)]
    reads = (targets != others).reshape(count).tolist()
    goes_on = [row in known for row in rows]
    pairs = [
        (on, read) for on, read, is_asked in zip(goes_on, reads, asked, strict=True) if is_asked
    ]
    going, ending = [r for on, r in pairs if on], [r for on, r in pairs if not on]
    flags = {
        name: [read for one, read in zip(ones, reads, strict=True) if one]
        for name, ones in plain.flags.items()
    }
    against = [
        name
        for name, ones in plain.flags.items()
        if any(one and on for one, on in zip(ones, goes_on, strict=True))
        # it is what is paid; where nothing is paid and nothing ends, all are zeros
        or (any(ones) and ones == [bool(reward) for reward in plain.rewards])
    ]
    return TransitionFacts(
        samples=count,
        going_on=len(going),
        read_going_on=sum(going),
        ending=len(ending),
        read_ending=sum(ending),
        together=2 * _changed(targets, moved.targets) > count,
        flags={
            name: (0, 0) if name in against else (len(read), sum(read))
            for name, read in flags.items()
        },
        no_flags=frozenset(against),
        paid_apart=frozenset(
            name for name, ones in plain.flags.items() if _stands_out(plain.rewards, ones)
        ),
    )


def together(
    before: TransitionFacts | None, facts: TransitionFacts | None
) -> TransitionFacts | None:
    """Those of several batches."""
    if before is None or facts is None:
        return facts or before
    return TransitionFacts(
        samples=before.samples,
        going_on=before.going_on + facts.going_on,
        read_going_on=before.read_going_on + facts.read_going_on,
        ending=before.ending + facts.ending,
        read_ending=before.read_ending + facts.read_ending,
        together=before.together and facts.together,
        flags={
            name: (before.flags[name][0] + ones, before.flags[name][1] + read)
            for name, (ones, read) in facts.flags.items()
            if name in before.flags
        },
        no_flags=before.no_flags | facts.no_flags,
        paid_apart=before.paid_apart | facts.paid_apart,
    )


def _stands_out(rewards: list[float], ones: list[bool]) -> bool:
    """What is paid for the samples with a 1 is far from what is paid for the others."""
    if len(rewards) != len(ones) or all(ones) or not any(ones):
        return False
    those = [reward for reward, one in zip(rewards, ones, strict=True) if one]
    others = [reward for reward, one in zip(rewards, ones, strict=True) if not one]
    return abs(fmean(those) - fmean(others)) > _FAR * pstdev(others)


def _changed(targets: torch.Tensor, others: torch.Tensor | None) -> int:
    if others is None or others.shape != targets.shape:
        return 0
    return int(torch.ne(targets, others).sum())


def _rows(values: torch.Tensor) -> list[bytes]:
    """Each row's values, as float32."""
    rows = values.detach().reshape(len(values), -1).to("cpu", torch.float32).contiguous()
    return [row.tobytes() for row in rows.numpy()]


def _kept_states(after: torch.Tensor, frames: Iterator[FrameType]) -> set[bytes]:
    """Those of these next states that the stores which hold them all have in another column, too,
    with values of their shape: there they are states."""
    wanted = after.detach().reshape(len(after), -1).to("cpu", torch.float32)
    every, found = set(_rows(wanted)), set[bytes]()
    for frame in islice(frames, _MOST_FRAMES):
        for value in _variables(frame):
            columns: dict[bytes, set[bytes]] = {}  # of two that are alike, one
            with contextlib.suppress(Exception):  # any object's own shape and items
                columns = {_told_by(rows): _among(rows, wanted) for rows in _columns(value, wanted)}
            # theirs holds them all, that of the states all but those that end an episode
            theirs, *others = sorted(columns.values(), key=len, reverse=True) or [set()]
            if others and len(theirs & every) >= _KNOWN * len(every):
                found |= others[0]
    return found


def _flags(count: int, frames: Iterator[FrameType]) -> dict[str, list[bool]]:
    """Variables and parts of variables that hold one 0 or 1 for each of so many samples."""
    found: dict[str, list[bool]] = {}
    for frame in islice(frames, _MOST_FRAMES):
        for name, value in variables_of_frame(frame).items():
            with contextlib.suppress(Exception):  # any object's own shape and items
                for path, part in _parts(name, value):
                    if (ones := _zeros_and_ones(part, count)) is not None:
                        found.setdefault(path, ones)
    return found


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f"{name}.{field}", getattr(value, field)) for field in value._fields)
    elif isinstance(value, (tuple, list)) and len(value) <= _MOST_PARTS:
        yield from ((f"{name}[{at}]", part) for at, part in enumerate(value))
    elif isinstance(value, dict) and len(value) <= _MOST_PARTS:
        yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
    elif not isinstance(value, torch.nn.Module):
        yield from ((f"{name}.{key}", part) for key, part in attributes_of(value).items())


def _zeros_and_ones(value: Any, count: int) -> list[bool] | None:
    if isinstance(value, (list, tuple)) and len(value) == count:
        numbers = all(type(one) in (bool, int, float) and one in (0, 1) for one in value)
        return [bool(one) for one in value] if numbers else None
    if not _is_array(value) or math.prod(value.shape) != count or value.shape[0] != count:
        return None
    values = torch.as_tensor(value).detach().reshape(-1).cpu()
    if values.is_complex() or not bool(((values == 0) | (values == 1)).all()):
        return None
    return [bool(one) for one in values.tolist()]


def _variables(frame: FrameType) -> Iterator[Any]:
    for value in names_in(frame).values():
        yield value
        if not isinstance(value, torch.nn.Module):
            inner = attributes_of(value)
            yield inner  # arrays side by side
            yield from inner.values()


def _columns(value: Any, wanted: torch.Tensor) -> Iterator[torch.Tensor]:
    """Rows of as many numbers as the wanted ones: the arrays of a mapping, or one for each place of
    a list's items, the latest of them. Raises what an item raises."""
    size = wanted.shape[1]
    if type(value) is dict:
        for array in list(value.values()):
            axes = range(1, array.ndim) if _is_array(array) else ()
            if any(_size(array, leading) == size for leading in axes):
                yield torch.as_tensor(array).detach().reshape(-1, size)
    elif type(value) in (list, tuple, deque) and len(value) >= _FEWEST:
        items = list(islice(reversed(value), min(_MOST_ROWS, _MOST_NUMBERS // size)))
        first = items[0] if items else None
        if type(first) is dict or isinstance(first, (tuple, list)):
            for key in list(first) if isinstance(first, dict) else range(len(first)):
                if _is_array(first[key]) and _size(first[key], 0) == size:
                    parts = [torch.as_tensor(item[key]).detach().flatten() for item in items]
                    yield torch.stack(parts)


def _told_by(rows: torch.Tensor) -> bytes:
    """Some of the rows, by which two copies are known."""
    return b"".join(_rows(rows[:: max(len(rows) // 64, 1)]))


def _among(rows: torch.Tensor, wanted: torch.Tensor) -> set[bytes]:
    """Which of the wanted rows are there. One number of each row is compared first, that in which
    the wanted ones differ most: stores are large."""
    one = int(wanted.std(0).argmax())
    near = torch.isin(rows[:, one].to("cpu", torch.float32), wanted[:, one])
    places = near.nonzero().flatten()[: max(_MOST_NUMBERS // wanted.shape[1], 1)]
    return set(_rows(rows[places.to(rows.device)])) & set(_rows(wanted))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or type(value) is torch.Tensor


def _size(array: Any, leading: int) -> int:
    """Numbers of one row, behind so many leading axes."""
    return math.prod(array.shape[leading:])
