"""A script's first step, run once more: does it come to the same, bit by bit?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanodoc.errors import said
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.whole_state import WholeState
from nanodoc.script.fingerprint import Fingerprint
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.tensors.plain import is_sharded


@dataclass(frozen=True, slots=True)
class RunAgain:
    """How it ended."""

    same: bool
    """Losses and gradients were bitwise the script's own; of a step that raised, the error."""
    stop: Stop | None
    """What was wrong with it."""
    ended_early: bool
    """It did not come to its end."""
    is_true: bool
    """It is wrong in the script, too."""
    unsafe: str = ""
    """Why it was not run."""


def run_again(
    first: Candidate, engine: ScriptEngine, recovered: RecoveredStep, error: BaseException | None
) -> RunAgain:
    """Runs it from its start, under every watcher; the script's own state is left as it was.
    `error` is what the script's own step raised, if anything."""
    limits = recovered.limits
    if (why := _of_others_too(engine.recipe.model)) is not None:
        return RunAgain(same=False, stop=None, ended_early=True, is_true=False, unsafe=why)
    now = WholeState(value for _, _, value in recovered.reached_variables())
    if now.unsafe is not None:
        return RunAgain(same=False, stop=None, ended_early=True, is_true=False, unsafe=now.unsafe)
    limits.optimizer_steps = max(1, first.optimizer_steps)
    prints: list[Fingerprint] = []
    limits.fingerprints = prints
    try:
        with state_preserved(engine.runner, engine.keeper):
            ended = engine.first(first.capsule, first.indices, trained=first.backwards > 0)
    finally:
        limits.fingerprints = None
        now.restore()
    stop = ended if isinstance(ended, Stop) else None
    failed = stop is not None and stop.failure is not None
    if error is not None:
        same = stop is not None and _raised_alike(stop, error)
    else:
        # a step that is sick is looked at in its middle, and run again to its end
        of_then = prints if first.finite else prints[: len(first.fingerprints)]
        pairs = zip(first.fingerprints, of_then, strict=False)
        same = len(of_then) == len(first.fingerprints) and all(a.same_as(b) for a, b in pairs)
        same = same and not failed
    return RunAgain(
        same=same,
        stop=stop,
        ended_early=ended is not None,
        is_true=not failed and not first.finite,
    )


def _of_others_too(model: torch.nn.Module) -> str | None:
    """Parameters that are not this process's alone."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            # a rank that ran the step again would wait for the others' parts
            return f"{name}, of which each rank holds a part"
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return "a FullyShardedDataParallel, of whose parameters each rank holds a part"
    for name, parameter in model.named_parameters():
        # others may write to it while the step runs, and must not lose that
        if parameter.device.type == "cpu" and parameter.is_shared():
            return f"{name}, in memory that other processes share"
    return None


def _raised_alike(stop: Stop, error: BaseException) -> bool:
    failure = stop.failure
    return failure is not None and (failure.type, failure.message) == (
        type(error).__name__,
        said(error),
    )
