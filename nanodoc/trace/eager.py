"""Compiled parts of a model run eagerly for a while."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator

import torch


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
