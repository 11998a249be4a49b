"""Compiled parts of a model run eagerly for a while."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import torch

COMPILERS = ("_dynamo", "_inductor", "_functorch")
"""The packages of torch whose exceptions tell of code while it is compiled."""


def of_compiler(error: BaseException) -> bool:
    """The exception is one of torch's compilers' own."""
    return type(error).__module__.startswith(tuple(f"torch.{name}." for name in COMPILERS))


@contextlib.contextmanager
def run_eagerly() -> Iterator[None]:
    """Compiled parts run eagerly inside, and are as they were afterwards; nothing to do where
    nothing was compiled."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        # ours, for this step only
        warnings.filterwarnings("ignore", message=".*global hooks on modules.*")
        yield
