"""A loader's workers, played by processes that are forked one after the other: each has its own
copy of the data set, its own seed, and what the loader's `worker_init_fn` makes of them. A sample
that changes with every draw should be another one in another worker, and in another epoch."""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import os
import pickle
import random
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.examination.kept import walked
from nanodoc.examination.lines_that import LineThatWrites
from nanodoc.examination.making import Source
from nanodoc.examination.sample import Sample, parts_of, seed_all
from nanodoc.facts.items import RepeatedDraws
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import worker
from nanodoc.supervise.parent_death import end_with_parent
from nanodoc.trace.files import USER, frame_kind, line_span

_EPOCHS = (1_000_003, 2_000_003)  # any two base seeds
_MOST_READ = 1 << 20  # bytes that a process may tell
_DRAWS = 24  # of one sample
_FEWEST = 12  # where drawing takes long
_OTHERS = 6
"""Of these draws, that are not the first one: coins that fall alike so often are no chance."""
_fork, _write = os.fork, os.write  # the training's own are muted while samples are drawn again


@dataclass(frozen=True, slots=True)
class _Told:
    """What one worker drew."""

    draws: list[dict[str, bytes]]
    """A digest of each part of a sample, draw after draw."""
    states: list[bytes]
    """Of the generators that all code of a process shares, when `worker_init_fn` was over."""
    seeded_at: SourceSpan | None
    """The line of `worker_init_fn` that gave NumPy's, Python's or torch's generator a state."""


def repeated_draws(source: Source, sample: Sample) -> RepeatedDraws | None:
    """None where a worker draws the same sample always, or each draws another one."""
    if source.workers < 1 or (source.workers == 1 and source.persistent):
        return None
    played = [(0, _EPOCHS[0]), (1 if source.workers > 1 else 0, _EPOCHS[source.workers < 2])]
    told = []
    for number, base in played:
        worker = _play(source, sample, number, base)
        if worker is None or not sample.in_time():
            return None
        told.append(worker)
    first, other = told
    count = min(len(first.draws), len(other.draws))
    if count < _FEWEST:
        return None
    alike = [
        part
        for part, digest in first.draws[0].items()
        if all(first.draws[n].get(part) == other.draws[n].get(part) for n in range(count))
        and sum(draw.get(part) != digest for draw in first.draws[:count]) >= _OTHERS
    ]
    if not alike:
        return None
    kept = _drawn_from(source.dataset, sample)
    seeded = any(one == same for one, same in zip(first.states, other.states, strict=True))
    if kept is None and not seeded:
        return None  # it counts, or takes turns
    holder, line = kept or ("", first.seeded_at)
    return RepeatedDraws(
        index=sample.index, workers=source.workers, part=alike[0], holder=holder, line=line
    )


def _play(source: Source, sample: Sample, number: int, base: int) -> _Told | None:
    """Worker `number` of an epoch whose base seed is `base`; None where it fails."""
    reading, writing = os.pipe()
    child = _fork()
    if child == 0:
        try:
            end_with_parent()
            _write(writing, pickle.dumps(_work(source, sample, number, base)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read(_MOST_READ)  # to the end of that process
    os.waitpid(child, 0)
    found = pickle.loads(told) if told else None  # of our own process
    return found if isinstance(found, _Told) else None


def _work(source: Source, sample: Sample, number: int, base: int) -> _Told:
    seed_all(base + number)
    worker._worker_info = worker.WorkerInfo(
        id=number, num_workers=source.workers, seed=base + number, dataset=source.dataset
    )
    with LineThatWrites(_states_for_all) as line:
        if source.worker_init is not None:
            source.worker_init(number)
    states, draws = _states_for_all(), []
    for _ in range(_DRAWS):
        draws.append(_digests(source.dataset[sample.index]))
        if not sample.in_time():
            break
    return _Told(draws, states, line.found)


def _digests(sample: Any) -> dict[str, bytes]:
    return {
        path: hashlib.sha256(part.contiguous().numpy().tobytes()).digest()
        for path, part in parts_of(sample)
    }


def _states_for_all() -> list[bytes]:
    """Of the generators that all code of a process shares."""
    numpy = sys.modules.get("numpy")
    shared = [pickle.dumps(random.getstate()), torch.get_rng_state().numpy().tobytes()]
    return [*shared, *([pickle.dumps(numpy.random.get_state())] if numpy is not None else [])]


# -- a generator that the data set keeps -----------------------------------------------------------


def _drawn_from(dataset: Any, sample: Sample) -> tuple[str, SourceSpan | None] | None:
    """(its name, the line that made it) of the generator that a draw advances."""
    kept = list(_generators(dataset, sample.index))
    before = [_state(generator) for _, generator, _ in kept]
    sample.draw(0)
    for (name, generator, owner), state in zip(kept, before, strict=True):
        if _state(generator) != state:
            return name.removeprefix("."), _made_at(owner, name.rpartition(".")[2])
    return None


def _generators(dataset: Any, index: int) -> Iterator[tuple[str, Any, type | str]]:
    """(its name, the generator, the class or the file whose code gives it that name)"""
    met = [(name, value) for name, value, _ in walked(dataset, index)]
    for name, value in met:
        if _state(value) is not None:
            owners = (owner for _, owner in met if _has(owner, value))
            yield name, value, type(next(owners, dataset))
    known = getattr(getattr(type(dataset), "__getitem__", None), "__globals__", {})
    for name, value in list(known.items()):
        if _state(value) is not None:
            yield name, value, str(known.get("__file__", ""))


def _has(owner: Any, generator: Any) -> bool:
    """As an attribute."""
    own = vars(owner) if hasattr(owner, "__dict__") and not isinstance(owner, type) else {}
    return any(each is generator for each in own.values())


def _state(value: Any) -> bytes | None:
    """None for anything but a generator of random numbers."""
    if isinstance(value, random.Random):
        return pickle.dumps(value.getstate())
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return pickle.dumps(value.get_state())
    return None


def _made_at(owner: type | str, name: str) -> SourceSpan | None:
    """The line of a class, or of a file, that assigns to `name`."""
    try:
        file = owner if isinstance(owner, str) else inspect.getsourcefile(owner) or ""
        lines, start = (
            (linecache.getlines(file), 1)
            if isinstance(owner, str)
            else inspect.getsourcelines(owner)
        )
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    if frame_kind(file) != USER:
        return None
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            continue  # `self.random = None`, to be made later
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(getattr(each, "attr", getattr(each, "id", None)) == name for each in targets):
            line = start + getattr(node, "lineno", 1) - 1
            return line_span(file, line, "<module>" if isinstance(owner, str) else owner.__name__)
    return None
