"""What nanodoc calls of torch, numpy and the standard library, replaced by functions that draw
random numbers at every call and count the calls that nanodoc itself makes."""

from __future__ import annotations

import atexit
import collections
import copy
import functools
import os
import random
import sys
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

OURS: collections.Counter[str] = collections.Counter()
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
# Called while torch imports modules of its own, which happens earlier with nanodoc; asked by
# compilers; what draws; and what torch asks once more where a function mode is there.
_LEFT_OUT = ("get_default_dtype", "is_grad_enabled", "compile", "typename", "is_tensor", "rand")
_ASKS_FOR_MODES = ("has_torch_function", "handle_torch_function")
_LEFT_OUT_OF_TENSOR = ("register_hook",)
_rand, _random, _numpy = torch.rand, random.random, np.random.rand
_busy = False


def _nearest() -> str:
    """The function of nanodoc's that calls, where no code of the script or of torch on its behalf
    lies between."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = f"{os.sep}site-packages{os.sep}" in file
        if f"{os.sep}nanodoc{os.sep}" in file and not inside:
            if f"{os.sep}instrument{os.sep}" in file:
                return ""
            return f"{file.rpartition(os.sep)[2]}:{frame.f_code.co_name}:{frame.f_lineno}"
        if not (inside and f"{os.sep}torch{os.sep}" in file) and "/lib/python" not in file:
            return ""
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return ""


def _replace(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        global _busy
        if _busy:
            return original(*args, **kwargs)
        _busy = True
        try:
            where = _nearest()
            if where:
                OURS[f"{name} by {where}"] += 1
            _rand(1), _random(), _numpy(1)
        finally:
            _busy = False
        return original(*args, **kwargs)

    setattr(owner, name, replaced)


def _public(owner: Any, without: Iterable[str] = ()) -> list[str]:
    return [
        name
        for name in dir(owner)
        if not name.startswith("_")
        and name not in without
        and not name.startswith(_ASKS_FOR_MODES)
        and isinstance(getattr(owner, name, None), _FUNCTIONS)
    ]


def replace_all() -> None:
    """Replaces them, and writes the calls of nanodoc's to the file that OURS names at the end."""
    for owner, names in (
        (torch.Tensor, _public(torch.Tensor, _LEFT_OUT_OF_TENSOR)),
        (torch, _public(torch, _LEFT_OUT)),
        (F, _public(F)),
        (torch.linalg, _public(torch.linalg)),
        (time, ("time", "perf_counter", "monotonic", "sleep", "process_time", "time_ns")),
        (copy, ("copy", "deepcopy")),
        (random, ("random", "randint", "shuffle", "getstate", "setstate", "seed")),
        (np.random, ("get_state", "set_state", "seed")),
        (np, ("array", "asarray", "isnan", "isfinite", "zeros")),
        (os, ("getcwd", "cpu_count")),
    ):
        for name in names:
            _replace(owner, name)
    atexit.register(_write, Path(os.environ["OURS"]).write_text)


def _write(write: Any) -> None:
    write("\n".join(f"{count} {what}" for what, count in OURS.most_common()))
