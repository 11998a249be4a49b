"""What every key of a stranger's snapshot must look like before anything of it is used."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.config import AMP
from nanodoc.replay.saved_random import random_state
from nanodoc.tensors.nested import tensors_in


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_run(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(
        value.get(key) is None or _is_number(value[key]) for key in ("loss", "grad_norm", "ranks")
    )


def _are_batches(value: object) -> bool:
    return isinstance(value, list) and bool(value) and not any(t.is_meta for t in tensors_in(value))


def _is_config(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    seed = value.get("seed")
    fits = seed is None or (type(seed) is int and 0 <= seed < 2**63)
    return (
        fits
        and value.get("amp") in (None, *AMP)
        and isinstance(value.get("recipe", {}), (dict, type(None)))
    )


def _is_rng(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    python, numpy, cpu, device = (value.get(key) for key in ("python", "numpy", "cpu", "device"))
    words = (
        isinstance(python, (tuple, list))
        and len(python) == 3
        and isinstance(python[1], (tuple, list))
        and all(type(w) is int for w in python[1])
        # the spare normal deviate, which `setstate` takes as it is
        and isinstance(python[2], (float, type(None)))
    )
    arrays = numpy is None or (
        isinstance(numpy, (tuple, list)) and len(numpy) == 5 and isinstance(numpy[1], torch.Tensor)
    )
    states = all(
        state is None or (isinstance(state, torch.Tensor) and state.dtype == torch.uint8)
        for state in (cpu, device)
    )
    devices = value.get("devices", {})
    named = _is_mapping(devices) and all(
        isinstance(state, torch.Tensor) and state.dtype == torch.uint8 for state in devices.values()
    )
    return words and arrays and states and named and cpu is not None and _generators_take(value)


def _generators_take(saved: dict[str, Any]) -> bool:
    """Whether the generators of the CPU can be put into these states."""
    try:
        state = random_state({"rng": saved})
        assert state is not None
        random.Random().setstate(state.python)
        torch.Generator().set_state(state.cpu)
        if state.numpy is not None and "numpy" in sys.modules:
            sys.modules["numpy"].random.RandomState().set_state(state.numpy)
    except Exception:  # whatever their own checks raise
        return False
    return True


def _is_script(value: object) -> bool:
    if value is None:
        return True
    if not _is_mapping(value):
        return False
    assert isinstance(value, dict)
    target, arguments, drawn = value.get("target"), value.get("arguments"), value.get("drawn")
    return (
        "target" in value
        and (target is None or (isinstance(target, str) and "\0" not in target))
        and isinstance(value.get("module"), bool)
        and isinstance(arguments, list)
        and all(isinstance(a, str) and "\0" not in a for a in arguments)
        and type(value.get("line")) is int
        and type(value.get("optimizer_steps")) is int
        and isinstance(value.get("source"), str)
        and _is_mapping(value.get("variables"))
        and isinstance(state := value.get("state"), list)
        and all(_is_state(entry) for entry in state)
        and isinstance(sources := value.get("sources", []), list)
        and all(isinstance(s, list) and len(s) == 2 and _is_route(s[0]) for s in sources)
        and isinstance(drawn, list)
        and all(isinstance(d, list) and len(d) == 3 and _is_rng(d[2]) for d in drawn)
    )


def _is_state(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_route(value[0])
        and isinstance(value[1], (list, dict))
    )


def _is_route(value: object) -> bool:
    return isinstance(value, list) and all(type(key) in (str, int) for key in value)


def _are_gradients(value: object) -> bool:
    return isinstance(value, list) and all(g is None or isinstance(g, torch.Tensor) for g in value)


SHAPE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": (lambda v: type(v) is int and 0 <= v < 2**53, "a step number"),
    "entrypoint": (lambda v: isinstance(v, str) and "\0" not in v, "FILE.py:NAME"),
    "config": (_is_config, "a configuration"),
    "run": (_is_run, "a mapping of numbers"),
    "batches": (_are_batches, "a list of batches, with values"),
    "rng": (_is_rng, "a set of random states"),
    "model": (_is_mapping, "a state_dict"),
    "attributes": (
        lambda v: _is_mapping(v) and all(isinstance(values, dict) for values in v.values()),
        "a mapping of modules",
    ),
    "training": (
        lambda v: isinstance(v, list) and all(isinstance(flag, bool) for flag in v),
        "a list of flags",
    ),
    "optimizers": (lambda v: isinstance(v, list), "a list of state_dicts"),
    "indices": (
        lambda v: v is None or (isinstance(v, list) and all(type(row) is int for row in v)),
        "a list of indices",
    ),
    "gradients": (_are_gradients, "a list of gradients"),
    "script": (_is_script, "what a script's step needs"),
    "torch": (lambda v: isinstance(v, str), "a version"),
    "machine": (_is_mapping, "a mapping"),
}

NEEDED = ("step", "entrypoint", "batches", "rng", "model")
