"""Values that a script stores beside its steps and overwrites before anything has read them: the
flags of a rollout that are stored twice, say.

How often each tensor of the loop's function was written to is compared at the starts of steps that
are watched in full. Where one of several alike is written to a multiple of what the others are, the
next such stretch of the script is listened to, assignment by assignment.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import dis
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, ClassVar
from weakref import ref

import torch
from torch.multiprocessing.reductions import reduce_tensor

from nanodoc.facts.asides import OverwrittenFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.torch_private import disabled_torch_function, function_modes
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.frame_variables import attributes_of, names_in, users_frames
from nanodoc.trace.spans import resolved

look_through(__file__)

_FEWEST_ROWS = 8
_FEWEST_TIMES = 8  # overwritten: fewer may be a beginning
_DEEPEST, _MOST_HELD = 3, 200
_MOST_LOOKS = 128  # starts of steps
_MOST_WAITS = 48  # starts of steps: a rollout may be learnt from in many of them


@dataclass(slots=True)
class _Written:
    """A tensor at the start of a step. It is not held: the script may let go of it."""

    name: str
    held: ref[torch.Tensor]
    rows: int
    version: int

    @property
    def moved(self) -> int:
        """How often it has been written to since; 0 where it is gone."""
        tensor = self.held()
        return 0 if tensor is None else tensor._version - self.version


@dataclass(slots=True)
class _Store:
    """The last value that was stored and not read since."""

    key: Any
    frame: tuple[int, ...]
    """The frame, and where in its caller it was called: the next call may get the same memory."""
    code: CodeType
    at: int
    """The offset of its instruction."""


@dataclass(slots=True)
class _Pair:
    """Two assignments to the same place, one behind the other."""

    times: int = 0
    differing: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    """Of the values that were overwritten."""


Places = tuple[CodeType, int, int]


class OverwrittenStores:
    """Told of the starts of steps that are watched in full, in the frame of their loop."""

    def __init__(self, quiet: Callable[[], bool]) -> None:
        self._quiet = quiet
        self._before: dict[int, _Written] = {}
        self._looks = self._waits = 0
        self._listened: dict[int, _Written] = {}
        self._last: dict[int, _Store] = {}
        self._pairs: dict[tuple[int, Places], _Pair] = {}
        self._stored: dict[tuple[int, CodeType, int], int] = {}
        """How often each assignment has stored."""
        self._changed: list[ref[torch.Tensor]] = []
        """Those that have another class meanwhile."""
        self.facts: OverwrittenFacts | None = None

    def at(self, frame: FrameType) -> None:
        """A step begins in `frame`."""
        if self._looks >= _MOST_LOOKS:
            return
        self._looks += 1
        # tensors of any kind, and attributes of any object
        with contextlib.suppress(Exception):
            self._look(frame)
        if self._looks >= _MOST_LOOKS:
            self.close()

    def close(self) -> None:
        """Listens no more, and lets go of everything."""
        for held in self._changed:
            if (tensor := held()) is not None:
                tensor.__class__ = torch.Tensor
        if self._changed:
            self._changed, _Listened.stores = [], None
        self._looks = _MOST_LOOKS
        self._before, self._listened, self._last = {}, {}, {}

    def _look(self, frame: FrameType) -> None:
        if self._changed:
            self._waits += 1
            self.facts = self._found()
            if self.facts is not None or self._waits >= _MOST_WAITS:
                self.close()
            return
        now = _stores_of(frame)
        jumps = {key: self._before[key].moved for key in now.keys() & self._before.keys()}
        self._before = now
        for key, jump in jumps.items():
            alike = [j for k, j in jumps.items() if j > 0 and now[k].rows == now[key].rows]
            if jump > 0 and len(alike) > 1 and jump > min(alike) and jump % min(alike) == 0:
                self._listened[key] = now[key]
        if self._listened and _Listened.stores is None and not _others_listen():
            _Listened.stores = self
            for written in self._listened.values():
                if (tensor := written.held()) is not None:
                    tensor.__class__ = _Listened
                    self._changed.append(written.held)

    def _found(self) -> OverwrittenFacts | None:
        for (key, (code, first, second)), pair in self._pairs.items():
            always = pair.times == self._stored.get((key, code, first))
            if always and pair.times >= _FEWEST_TIMES and pair.differing and pair.low < pair.high:
                return OverwrittenFacts(
                    name=self._listened[key].name,
                    times=pair.times,
                    differing=pair.differing,
                    stored_at=resolved((code, first)),
                    overwritten_at=resolved((code, second)),
                )
        return None

    # -- listening ---------------------------------------------------------------------------------

    def written(self, tensor: Any, index: Any, value: Any) -> None:
        """`tensor[index] = value` is about to be done."""
        if self._is_listened_to(tensor) and not self._quiet():
            with contextlib.suppress(Exception):  # indices and values of any kind
                self._note(tensor, index, value)

    def read(self, tensor: Any) -> None:
        """`tensor[index]` is about to be read."""
        if self._is_listened_to(tensor):
            self._last.pop(id(tensor), None)

    def _is_listened_to(self, tensor: Any) -> bool:
        known = self._listened.get(id(tensor))
        return known is not None and known.held() is tensor

    def _note(self, tensor: torch.Tensor, index: Any, value: Any) -> None:
        key, before = _key(index), self._last.pop(id(tensor), None)
        frame = next(users_frames(), None)
        if frame is None:
            return
        caller = frame.f_back.f_lasti if frame.f_back is not None else -1
        store = _Store(key, (id(frame), caller), frame.f_code, frame.f_lasti)
        place = id(tensor), store.code, store.at
        self._stored[place] = self._stored.get(place, 0) + 1
        self._last[id(tensor)] = store
        if before is None or (before.key, before.frame) != (key, store.frame) or key is None:
            return
        if before.code is not store.code or not before.at < store.at:
            return
        if _mentions(frame, before.at, store.at, tensor) > 1:  # the assignment itself is one
            return
        places = store.code, before.at, store.at
        pair = self._pairs.setdefault((id(tensor), places), _Pair())
        pair.times += 1
        with torch.no_grad():
            kept = tensor.detach()[key]
            given = torch.as_tensor(value, dtype=kept.dtype, device=kept.device).expand_as(kept)
            pair.differing += not torch.equal(kept, given)
            pair.low = min(pair.low, float(kept.min()))
            pair.high = max(pair.high, float(kept.max()))


class _Listened(torch.Tensor):
    """What a store's tensor is while it is listened to: the same object, with an `__class__` of
    another name. Methods at `torch.Tensor.__getitem__` would be no harmless way to listen: with
    those, torch takes all tensors for Python sequences, and `torch.tensor([a, b])` of two scalars
    raises for the rest of the process. A function mode would change which kernels layers of
    attention choose, and what a compiler compiles."""

    stores: ClassVar[OverwrittenStores | None] = None
    # operations on it give plain tensors, and no function mode or subclass is told of them
    __torch_function__ = disabled_torch_function

    def __setitem__(self, index: Any, value: Any) -> None:
        if _Listened.stores is not None:
            _Listened.stores.written(self, index, value)
        super().__setitem__(index, value)

    def __getitem__(self, index: Any) -> Any:
        if _Listened.stores is not None:
            _Listened.stores.read(self)
        return super().__getitem__(index)

    # whatever is printed, copied or saved meanwhile is a plain tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.as_subclass(torch.Tensor))

    def __deepcopy__(self, memo: Any) -> Any:
        return self.as_subclass(torch.Tensor).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)


# to other processes goes its memory, as that of any tensor
ForkingPickler.register(_Listened, lambda store: reduce_tensor(store.as_subclass(torch.Tensor)))


def _others_listen() -> bool:
    """A function mode, or a subclass of tensors, may tell methods of tensors apart by what stands
    at their names."""
    waiting: list[type] = list(torch.Tensor.__subclasses__())
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        # with torch's own, its functions are called as those of any other tensor
        own = "__torch_function__" in vars(kind)
        if own and not kind.__module__.startswith(("torch.", "nanodoc.")):
            return True
    return bool(function_modes())


def _key(index: Any) -> Any:
    """An index of whole numbers, as one that can be compared; None of another."""
    if isinstance(index, tuple):
        keys = tuple(_key(part) for part in index)
        return None if None in keys else keys
    with contextlib.suppress(TypeError):
        return operator.index(index)
    return None


def _mentions(frame: FrameType, first: int, last: int, tensor: torch.Tensor) -> int:
    """How often the instructions between two of a frame may reach the tensor: they load it, or what
    holds it, unless another attribute of that is all they take."""
    known = names_in(frame)
    between = [i for i in dis.get_instructions(frame.f_code) if first < i.offset < last]
    count = 0
    for found, following in zip(between, [*between[1:], None], strict=True):
        if not found.opname.startswith("LOAD") or found.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            continue
        value = known.get(found.argval) if isinstance(found.argval, str) else None
        if value is tensor:
            count += 1
        elif _holds(value, tensor):
            taken = following.argval if following and following.opname == "LOAD_ATTR" else None
            other = attributes_of(value).get(str(taken), tensor)
            count += other is tensor or _holds(other, tensor)
    return count


def _holds(value: Any, tensor: torch.Tensor) -> bool:
    """A container or an object has the tensor in it, at most three deep."""
    waiting, depth = [value], 0
    while waiting and depth < _DEEPEST:
        inside: list[Any] = []
        for one in waiting:
            if isinstance(one, Mapping):
                inside += list(one.values())
            elif isinstance(one, (list, tuple, set)):
                inside += list(one)
            elif not isinstance(one, (torch.Tensor, type, ModuleType, FunctionType)):
                inside += list(attributes_of(one).values())
        if any(one is tensor for one in inside):
            return True
        waiting, depth = inside[:_MOST_HELD], depth + 1
    return False


def _held(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a frame's variables hold, and the attributes of the script's own objects."""
    for name, value in names_in(frame).items():
        yield name, value
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            continue
        file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
        if isinstance(file, str) and frame_kind(file) == USER:
            yield from attributes_of(value).items()


def _stores_of(frame: FrameType) -> dict[int, _Written]:
    """Tensors of several rows that do not learn, by their id."""
    return {
        id(value): _Written(name, ref(value), len(value), value._version)
        for name, value in _held(frame)
        if type(value) is torch.Tensor and not (value.requires_grad or value.is_inference())
        if value.dim() and len(value) >= _FEWEST_ROWS
    }
