"""What comes into an iteration from outside: batches that the body draws by itself, what an
environment answers. Kept while the script runs, and given again when the iteration is run again,
each with the random state that followed it: a sampler draws its seed inside the first `next`. What
queues give to the user's own code is kept, too; put into them is nothing while it is run again."""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch.utils.data import IterableDataset

from nanodoc.facts.asides import AsideFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument import taps
from nanodoc.instrument.frames import caller, look_through
from nanodoc.instrument.originals import SIDES
from nanodoc.replay.objects import QUEUES
from nanodoc.replay.rng import RandomKeeper, RandomState
from nanodoc.script.asides import Asides
from nanodoc.script.batch_scales import BatchScales
from nanodoc.script.drawn_indices import DrawnIndices, numbers_of
from nanodoc.script.loops import Loops
from nanodoc.trace.bindings import prepared_otherwise_at
from nanodoc.trace.files import USER, frame_kind

look_through(__file__)

_EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), range(0), "")
_PLAIN_ITERATORS = {type(iter(container)) for container in _EMPTY}
_SIMULATORS = ("gymnasium", "gym")

Drawn = tuple[bool, Any, RandomState]
"""(it was the end, the value, the random state behind it); the value is `_EMPTY_QUEUE` where the
end was that of a queue"""
_EMPTY_QUEUE = "queue.Empty"
_ANSWERS = ("get", "get_nowait", "empty", "full", "qsize")  # of a queue
_ORDERS = ("put", "put_nowait", "task_done", "join")
_MOST_VALIDATED = 4  # data sets


class Drawings(list[Drawn]):
    """What one iteration drew, in order."""

    code: types.CodeType | None = None
    """That of the frame it runs in."""


def drawings_of(code: types.CodeType | None) -> Drawings:
    """None yet, of an iteration that runs in a frame of this code."""
    found = Drawings()
    found.code = code
    return found


class StopReplay(BaseException):
    """Ends the body of an iteration that is run again, when its step is over."""


def called_by_loader(frame: FrameType | None) -> bool:
    """The call came from a DataLoader, which speaks to its workers."""
    while frame is not None and frame_kind(frame.f_code.co_filename) != USER:
        if frame.f_globals.get("__name__") == "torch.utils.data.dataloader":
            return True
        frame = frame.f_back
    return False


class Outside:
    """Wraps `next`, loaders' iterators and simulators while a script runs; `close` unwraps them."""

    def __init__(self, loops: Loops, device: torch.device) -> None:
        self._loops = loops
        self._device = device
        self._random = RandomKeeper(device)
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._thread = threading.get_ident()
        self._simulators: set[int] = set()
        self._looked_at: set[tuple[str, int]] = set()
        self._seconds = 0.0
        self._drew: set[tuple[str, int]] = set()
        """Lines of the script that have drawn by `next`."""
        self.sinks: list[Drawings] = []
        """Where a value that is drawn now is kept."""
        self.given: deque[Drawn] | None = None
        """What is given instead, in an iteration that is run again."""
        self.indices = DrawnIndices()
        self.iterator: Any = None
        """The loader's iterator that yielded it."""
        self.trained_on: types.SimpleNamespace | None = None
        """The data set, collate function and sampler of the training's loader, by the names that a
        DataLoader has for them."""
        self._trained_by: Callable[[], Any] = lambda: None
        """The iterator that was trained on last."""
        self.validated_on: list[weakref.ref[Any]] = []
        """The other data sets that were drawn from with gradients off since then."""
        self.trainings = 0
        """Backward passes and steps of optimizers."""
        self.asides, self.scales = Asides(), BatchScales()
        self.asides.quiet = lambda: self.given is not None
        self._last_validated: Any = None
        """One of them is held, so that it is there when the function that made it has returned."""

    def trains(self) -> None:
        """A backward pass begins, or an optimizer is about to step."""
        self.trainings += 1
        asides = self.asides
        if asides.before is not None or asides.averaged.waits:
            asides.trains()

    def begin_step(self, batch: Any, recorded: Drawings) -> tuple[list[int] | None, float]:
        """An iteration of the training begins, with this batch: what was drawn from last is what it
        trains on, and not what a validation draws from later. What the iteration draws is kept in
        `recorded`. Returns the data set's indices of the batch, where they are known, and the
        seconds that loaders took since the last one."""
        self.sinks = [recorded]
        self.asides.inputs.begins()
        if self.asides.before is not None or self.asides.averaged.waits:
            self.asides.trains()
        dataset = getattr(self.iterator, "_dataset", None)
        if dataset is not None and self._trained_by() is not self.iterator:
            if self.trained_on is None or dataset is not self.trained_on.dataset:
                self.validated_on.clear()  # another training, with another part left out
            # not held: its workers end with it
            self._trained_by = weakref.ref(self.iterator)
            self.trained_on = _loader_of(self.iterator)
        seconds, self._seconds = self._seconds, 0.0
        return self.indices.of(batch), seconds

    @property
    def loader(self) -> types.SimpleNamespace | None:
        """As `trained_on`; before the second step, the loader that was drawn from last."""
        if self.trained_on is None and getattr(self.iterator, "_dataset", None) is not None:
            return _loader_of(self.iterator)
        return self.trained_on

    def _fetched(self, iterator: Any, drawing: Callable[[], Any]) -> Any:
        """A loader's next batch."""
        aside = self._is_aside(iterator)
        if aside:
            self.asides.before_batch(iterator)
        at = time.perf_counter()
        value = self.draw(drawing)
        self._seconds += time.perf_counter() - at
        indices = vars(iterator).get("_nanodoc_indices")
        if self.given is None:
            self._drawn_from(iterator)
            # workers that need not keep their order give what is ready first
            ordered = getattr(iterator, "_in_order", True)
            drawn = indices.popleft() if indices and ordered else None
            self.indices.drawn(value, drawn, iterator._collate_fn)
        if aside:
            self.asides.after_batch(iterator)
        if self.given is None and getattr(iterator, "_num_yielded", 0) == 1:
            known = self.trained_on.dataset if self.trained_on is not None else None
            self.scales.first_batch(iterator, value, known)
        return value

    def facts(self, made_at: Callable[[Any], SourceSpan | None]) -> AsideFacts:
        """What the script did beside its steps; `made_at` tells where a loader was made."""
        scale = self.scales.found
        if scale is not None:
            loader = made_at(self.scales.sampler)
            scale = replace(scale, made_at=_prepared_at(loader) or loader or scale.made_at)
        return replace(self.asides.told, scale=scale)

    def _is_aside(self, iterator: Any) -> bool:
        """It draws from another data set than the training."""
        if self.given is not None or self.trained_on is None:
            return False
        return iterator._dataset is not self.trained_on.dataset

    def _drawn_from(self, iterator: Any) -> None:
        """A batch of a loader has come."""
        self.iterator = iterator
        if self.trained_on is None or torch.is_grad_enabled():
            return
        dataset = iterator._dataset
        known = [self.trained_on.dataset, *(part() for part in self.validated_on)]
        if len(known) > _MOST_VALIDATED or any(dataset is each for each in known):
            return
        with contextlib.suppress(TypeError):  # a list
            self.validated_on.append(weakref.ref(dataset))
            self._last_validated = dataset

    def validations(self) -> list[Any]:
        """The data sets that the training is validated on; empty where some are gone: what they
        were can't be told any more."""
        parts = [part() for part in self.validated_on]
        return [] if any(part is None for part in parts) else parts

    def install(self) -> None:
        """Puts the wrappers in place."""
        self._undo += [
            taps.LOADER_NEXT.listen(self._fetching),
            taps.LOADER_INDEX.listen(self._indexing),
            taps.NEXT.listen(self._drawing),
        ]
        self.asides.install()
        for kind in QUEUES:
            self._keep_what_it_gives(kind)

    def _fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda iterator: self._fetched(iterator, lambda: original(iterator))

    def _indexing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def index(iterator: Any) -> Any:
            found = original(iterator)
            if not isinstance(iterator._dataset, IterableDataset):
                vars(iterator).setdefault("_nanodoc_indices", deque()).append(numbers_of(found))
            return found

        return index

    def _drawing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        files = self._loops.by_file

        def next_(*arguments: Any) -> Any:
            if self._depth:
                return original(*arguments)
            # the wrapper of `taps` lies between, and with sides some more of that package
            frame = caller() if SIDES.replaced else sys._getframe(2)
            if frame.f_code.co_filename not in files:
                return original(*arguments)
            place = frame.f_code.co_filename, frame.f_lineno
            if self.given is None:
                self._drew.add(place)
            elif place not in self._drew:  # it was compiled, and what it drew was not kept
                return original(*arguments)
            return self.draw(lambda: original(*arguments))

        return next_

    def _keep_what_it_gives(self, kind: Any) -> None:
        """Of a class of queues: what they give to the files of the script. A loader's own queues
        are left alone."""
        outside = self

        def getting(original: Any, waiting: Any, args: Any, kwargs: Any) -> Any:
            return outside.draw(lambda: original(waiting, *args, **kwargs))

        def not_twice(original: Any, waiting: Any, args: Any, kwargs: Any) -> Any:
            return original(waiting, *args, **kwargs) if outside.given is None else None

        for name in (*_ANSWERS, *_ORDERS):
            # what is awaited is kept by the loop that awaits it
            if name in vars(kind) and not inspect.iscoroutinefunction(vars(kind)[name]):
                self._wrap(kind, name, getting if name in _ANSWERS else not_twice)

    def _wrap(self, kind: Any, name: str, instead: Callable[..., Any]) -> None:
        """`instead` of a queue's method where the script itself calls it."""
        files = self._loops.by_file

        def listener(original: Callable[..., Any]) -> Callable[..., Any]:
            def called(waiting: Any, *args: Any, **kwargs: Any) -> Any:
                if self._depth or threading.get_ident() != self._thread:
                    return original(waiting, *args, **kwargs)
                frame = caller()
                file = frame.f_code.co_filename
                if file in files or frame_kind(file) == USER:
                    return instead(original, waiting, args, kwargs)
                if self.given is not None and not called_by_loader(frame):
                    raise StopReplay("somebody else uses a queue")
                return original(waiting, *args, **kwargs)

            return called

        self._undo.append(taps.at(kind, name).listen(listener))

    def close(self) -> None:
        """Takes the wrappers away."""
        while self._undo:
            self._undo.pop()()
        self.asides.close()
        self.sinks = []

    def draw(self, make: Callable[[], Any]) -> Any:
        """The value that `make` draws, kept; in an iteration that is run again, the one of then."""
        if self._depth or threading.get_ident() != self._thread:
            return make()
        if self.given is not None:
            if not self.given:
                raise StopReplay("more was drawn than when the step ran")
            ended, value, random = self.given.popleft()
            random.restore(self._device)
            if ended:
                raise queue.Empty if value == _EMPTY_QUEUE else StopIteration
            return value
        self._depth += 1
        try:
            value = make()
        except (StopIteration, queue.Empty) as error:
            what = _EMPTY_QUEUE if isinstance(error, queue.Empty) else None
            self.keep(what, self.sinks, ended=True)
            raise
        finally:
            self._depth -= 1
        self.keep(value, self.sinks)
        return value

    def keep(self, value: Any, sinks: list[Drawings], *, ended: bool = False) -> None:
        """What has come into iterations that run."""
        if sinks:
            drawn = (ended, value, self._random.take())
            for sink in sinks:
                sink.append(drawn)

    def each(self, values: Any) -> Any:
        """The iterable of a loop inside a step: a container as it is; what an iterator yields
        that outlives the iteration is kept."""
        # asked of its class: iter() would begin a loader's pass
        outlives = hasattr(type(values), "__next__") and not _of_containers(values)
        if not outlives or type(values).__module__ == "tqdm.std":
            return values
        return self._each(values)

    def _each(self, values: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                value = self.draw(values.__next__)
            except StopIteration:
                return
            yield value

    def simulators_of(self, namespace: Mapping[str, Any], loop: tuple[str, int]) -> None:
        """Keeps what the environments among the globals of a file answer, before the first
        iteration of a loop."""
        if loop not in self._looked_at:
            self._looked_at.add(loop)
            for value in list(namespace.values()):
                self.simulator(value)

    def simulator(self, value: Any) -> None:
        """Keeps what an environment's `step` and `reset` answer."""
        if not type(value).__module__.startswith(_SIMULATORS) or isinstance(value, type):
            return
        if id(value) in self._simulators or not hasattr(value, "__dict__"):
            return
        self._simulators.add(id(value))
        for name in ("step", "reset"):
            method = getattr(value, name, None)
            if callable(method) and name not in vars(value):
                vars(value)[name] = self._answering(method)
                self._undo.append(lambda name=name: vars(value).pop(name, None))  # type: ignore[misc]  # bound now

    def _answering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.draw(lambda: method(*args, **kwargs))


def _loader_of(iterator: Any) -> types.SimpleNamespace:
    """What a loader's iterator tells of the loader, by the loader's own names."""
    return types.SimpleNamespace(
        dataset=iterator._dataset,
        collate_fn=iterator._collate_fn,
        num_workers=iterator._num_workers,
        worker_init_fn=getattr(iterator, "_worker_init_fn", None),
        persistent_workers=iterator._persistent_workers,
        _index_sampler=iterator._index_sampler,
    )


def _of_containers(iterator: Any) -> bool:
    """An iterator over containers only, which the body made itself of what it computed."""
    if type(iterator) in _PLAIN_ITERATORS:
        return True
    if type(iterator) not in (zip, enumerate, map, filter, reversed):
        return False
    try:
        inner = iterator.__reduce__()[1]
    except (TypeError, AttributeError):
        return False
    if len(inner) == 1 and isinstance(inner[0], tuple):
        inner = inner[0]
    return all(_of_containers(x) for x in inner if hasattr(x, "__next__"))


def _prepared_at(loader: SourceSpan | None) -> SourceSpan | None:
    if loader is not None:
        with contextlib.suppress(Exception):  # source of any kind
            return prepared_otherwise_at(os.path.abspath(loader.file), loader.line)
    return None
