"""What `nanodoc replay` may be asked to change and to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from nanodoc.errors import UsageError
from nanodoc.experiments.experiments import KEYS

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """What to change and what to do. `settings` are texts such as "optimizer.lr=1e-4"; `samples`
    rows of the batch; `minimal` where the smallest failing batch is written."""

    dtype: str | None = None
    settings: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    ops: bool = False
    experiment: str | None = None
    minimal: Path | None = None
    debug: bool = False
    together: bool = False
    """By all ranks of a sharded step, of which this process is one."""


def check(options: ReplayOptions) -> None:
    """Raises `UsageError` for what can't be done before anything runs."""
    if options.experiment is not None and options.experiment not in KEYS:
        raise UsageError(f"no experiment {options.experiment!r}; there are " + ", ".join(KEYS))
    if options.dtype is not None and options.dtype not in DTYPES:
        raise UsageError(f"--dtype {options.dtype!r} is not one of " + ", ".join(DTYPES))
    if options.minimal is not None and options.minimal.exists():
        raise UsageError(f"{options.minimal} exists already; name another file with --output")
