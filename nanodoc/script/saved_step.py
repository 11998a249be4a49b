"""A script's step as plain values of a snapshot, and put back into the same script when it has come
to its loop again."""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.replay.objects import LONGEST, PLAIN, PlainState, is_stateful
from nanodoc.replay.plain_values import holds_dropped, like, plain
from nanodoc.replay.random_sources import set_state_of_source, state_of_source
from nanodoc.replay.saved_random import random_content, random_state
from nanodoc.script.outside import drawings_of
from nanodoc.script.recovered import RecoveredStep
from nanodoc.supervise.launch import Launch

_NUMBERS = (bool, int, float, str, bytes, type(None))
_DEEPEST = 4  # objects inside objects
_MOST = 500  # objects

Route = list[str | int]
"""A variable's name, and the keys, positions and attributes behind it."""


def step_content(step: RecoveredStep, launch: Launch | None) -> dict[str, Any]:
    """What a snapshot keeps of a script's step besides weights, batch and random states: how the
    script was started, which loop it is, the variables that the loop's body changes, and what it
    drew. `launch` is None for a trainer that `build()` returned."""
    loop = step.loop
    assert loop is not None
    if step.undo is not None:
        step.undo.restore()
    changing = {*loop.rebound, *loop.carried, *loop.targets}
    variables = {
        name: saved
        # of a step that was watched by its losses, the numbers alone are its own
        for name, value in {**step.variables, **step.numbers}.items()
        if isinstance(value, _NUMBERS) or name in changing
        if not isinstance(value, torch.nn.Module)
        and not holds_dropped(saved := plain(value, arrays=True))
    }
    return {
        "target": launch.target if launch is not None else None,
        "module": launch.module if launch is not None else False,
        "arguments": list(launch.arguments) if launch is not None else [],
        "line": loop.line,
        "source": source_of(loop.file),
        "optimizer_steps": step.limits.optimizer_steps,
        "variables": variables,
        "state": [[path, _numbers(value)] for path, value in _objects(_reached(step))],
        "sources": [[path, state] for path, state, _ in _sources(_reached(step))],
        "drawn": [
            [ended, plain(value, arrays=True), random_content(random)]
            for ended, value, random in step.recorded
        ],
    }


def put_back(step: RecoveredStep, content: Mapping[str, Any]) -> None:
    """Gives a step that has just begun what the snapshot's step began with. Raises `ValueError` for
    a value that the snapshot does not hold."""
    saved = content["script"]
    if holds_dropped([value for _, value, _ in saved["drawn"]]):
        raise ValueError("the step drew a value that a snapshot cannot store")
    step.limits.optimizer_steps = max(1, saved["optimizer_steps"])
    step.limits.unused = True
    held = {**step.numbers, **step.variables}
    values = {n: like(v, held.get(n)) for n, v in saved["variables"].items()}
    # in place: the step's capsule holds the same numbers, of which some may be global variables
    step.numbers.update({n: v for n, v in values.items() if n in step.numbers})
    step.variables.update({n: v for n, v in values.items() if n in step.variables or n not in held})
    known = {tuple(path): value for path, value in _objects(_reached(step))}
    for path, numbers in saved["state"]:
        if tuple(path) in known:
            with contextlib.suppress(Exception):  # an object may refuse whatever it likes
                _set_numbers(known[tuple(path)], numbers)
    sources = {tuple(path): source for path, _, source in _sources(_reached(step))}
    for path, state in saved.get("sources", []):
        if tuple(path) in sources:
            with contextlib.suppress(Exception):  # of another kind than it was
                set_state_of_source(sources[tuple(path)], state)
    step.undo = PlainState(_reached(step).values())
    templates = [value for _, value, _ in step.recorded]
    templates += [None] * (len(saved["drawn"]) - len(templates))
    drawn = drawings_of(step.code)
    for (ended, value, random), template in zip(saved["drawn"], templates, strict=False):
        then = random_state({**content, "rng": random})
        assert then is not None  # the snapshot's shape was checked
        drawn.append((ended, like(value, template), then))
    step.recorded = drawn


def _reached(step: RecoveredStep) -> dict[str, Any]:
    """What the body reads, by name."""
    return {name: value for name, _, value in step.reached_variables()} | step.variables


def _objects(values: Mapping[str, Any]) -> Iterator[tuple[Route, Any]]:
    """Containers and objects that may count or remember, in the same order each time."""
    seen: set[int] = set()
    waiting: deque[tuple[Route, Any]] = deque(([name], values[name]) for name in sorted(values))
    while waiting and len(seen) < _MOST:
        path, value = waiting.popleft()
        if id(value) in seen or isinstance(value, (torch.Tensor, torch.nn.Module, *PLAIN)):
            continue
        seen.add(id(value))
        inside = _inside(value)
        if inside is None or len(inside) > LONGEST:
            continue
        yield path, value
        if len(path) < _DEEPEST:
            waiting.extend(([*path, k], v) for k, v in inside.items() if type(k) in (str, int))


def _sources(values: Mapping[str, Any]) -> Iterator[tuple[Route, Any, Any]]:
    """(path, state, the source itself) of random numbers that are no global ones."""
    holders: list[tuple[Route, Mapping[Any, Any]]] = [([], values)]
    holders += [(path, _inside(value) or {}) for path, value in _objects(values)]
    for path, inside in holders:
        for key, part in inside.items():
            if type(key) in (str, int) and (state := state_of_source(part)) is not None:
                yield [*path, key], state, part


def _inside(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    if is_stateful(value, libraries=True) or isinstance(value, LRScheduler):
        return dict(vars(value))
    return None


def _numbers(value: Any) -> list[Any] | dict[Any, Any]:
    """The numbers and texts that it holds: all of a list of nothing else, else by key."""
    inside = _inside(value) or {}
    plain_ones = {
        key: item
        for key, item in inside.items()
        if type(key) in (str, int) and type(item) in _NUMBERS
    }
    whole = isinstance(value, (list, deque)) and len(plain_ones) == len(inside)
    return list(plain_ones.values()) if whole else plain_ones


def _set_numbers(value: Any, numbers: list[Any] | dict[Any, Any]) -> None:
    if isinstance(numbers, list):
        if isinstance(value, (list, deque)) and list(value) != numbers:
            value.clear()
            value.extend(numbers)
        return
    held = value if isinstance(value, (dict, list, deque)) else vars(value)
    for key, number in numbers.items():
        if isinstance(value, tuple) or (isinstance(value, (list, deque)) and key >= len(value)):
            continue
        if isinstance(held, (list, deque)) or key not in held or held[key] != number:
            held[key] = number


def launch_of(content: Mapping[str, Any]) -> Launch | None:
    """How the script was started; None for a trainer that `build()` returned."""
    saved = content["script"]
    if saved["target"] is None:
        return None
    return Launch(
        target=saved["target"], arguments=tuple(saved["arguments"]), module=saved["module"]
    )


def source_of(file: str) -> str:
    """A digest of a source file, empty where it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
