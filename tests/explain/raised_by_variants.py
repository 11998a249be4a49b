"""Errors whose message or frames tell which of several causes it was, raised for real: `raises_<id>`."""

from __future__ import annotations

import importlib
import io
import sys
import types

import numpy
import torch


def raises_numpy_alias_removed() -> None:
    numpy.float  # noqa: B018  # to ask for it is the mistake under test


def raises_own_module_not_found() -> None:
    importlib.import_module("models")


def raises_checkpoint_module_moved() -> None:
    module = types.ModuleType("models")
    exec("class Net: pass", module.__dict__)
    sys.modules["models"] = module
    file = io.BytesIO()
    try:
        torch.save(module.Net(), file)
    finally:
        del sys.modules["models"]
    file.seek(0)
    torch.load(file, weights_only=False)


def raises_memory_full() -> None:
    bytearray(2**62)
