"""Runs a script in a process that has its libraries already: `bare.py SCRIPT ARGUMENTS`.

Seeds are moved by MUTATION_SEED, the processor time is limited to MUTATION_SECONDS, and how the
script ended is written to MUTATION_RESULT: the processor seconds, the type of the exception, and
whether it was raised after a module was called. What happens before is no training.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn.modules.module import register_module_forward_pre_hook


def _move_seeds(by: int) -> None:
    for owner, name in ((torch, "manual_seed"), (random, "seed"), (numpy.random, "seed")):
        setattr(owner, name, _moved(getattr(owner, name), by))
    torch.manual_seed(0)
    numpy.random.seed(0)


def _moved(seed: Callable[[int], Any], by: int) -> Callable[..., Any]:
    def moved(given: int | None = None) -> Any:
        return seed(by if given is None else (given + by) % 2**32)

    return moved


def main() -> None:
    """Entry point: ends as the script does."""
    most = int(os.environ["MUTATION_SECONDS"])
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    _move_seeds(int(os.environ["MUTATION_SEED"]))
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[:0] = [str(Path(script).resolve().parent), os.environ["MUTATION_BESIDE"]]
    importlib.import_module("sitecustomize")  # realcode's: seeds, ends the script after its steps

    called = False

    def note(*_: object) -> None:
        nonlocal called
        called = True
        hook.remove()

    hook = register_module_forward_pre_hook(note)
    ended: dict[str, Any] = {"exception": ""}
    began = time.process_time()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        ended = {"exception": type(error).__name__}
        raise
    finally:
        ended |= {"training": called, "seconds": time.process_time() - began}
        Path(os.environ["MUTATION_RESULT"]).write_text(json.dumps(ended), "utf-8")


main()
