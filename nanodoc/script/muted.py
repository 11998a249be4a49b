"""Side effects of an iteration that is run again: nothing is printed, logged, written or waited for
a second time."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

# module, classes or functions of it, and which of their methods: they show or send something
_SILENT = (
    (
        "tqdm.std",
        "tqdm",
        ("update", "refresh", "display", "set_postfix", "set_description", "close"),
    ),
    ("torch.utils.tensorboard.writer", "SummaryWriter", None),
    ("wandb", "", ("log",)),
)

_OF_FILES = tuple(
    (os, name) for name in ("remove", "unlink", "rename", "replace", "rmdir", "truncate")
)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What runs inside leaves nothing behind outside of this process."""
    opening, opening_of_paths = builtins.open, io.open
    undo: list[tuple[Any, str, Any]] = []

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if any(letter in mode for letter in "wax+") and isinstance(file, (str, bytes, os.PathLike)):
            return opening(os.devnull, mode.replace("x", "w"), *args, **kwargs)
        return opening(file, mode, *args, **kwargs)

    for module, owner, names in _SILENT:
        loaded = sys.modules.get(module)
        target = getattr(loaded, owner, None) if owner else loaded
        for name in names or [n for n in dir(target) if n.startswith("add_") or n == "flush"]:
            if target is not None and hasattr(target, name):
                undo.append((target, name, getattr(target, name)))
                setattr(target, name, _nothing)
    for target, name in ((torch, "save"), (time, "sleep"), *_OF_FILES):
        undo.append((target, name, getattr(target, name)))
        setattr(target, name, _nothing)
    level = logging.root.manager.disable
    builtins.open = io.open = open_  # put back below
    logging.disable(logging.CRITICAL)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    finally:
        builtins.open, io.open = opening, opening_of_paths
        logging.disable(level)
        for target, name, original in reversed(undo):
            setattr(target, name, original)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
