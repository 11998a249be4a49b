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
    shared = next((n for n, p in engine.recipe.model.named_parameters() if _is_shared(p)), None)
    if shared is not None:
        why = f"{shared}, in memory that other processes share"
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


def _is_shared(parameter: torch.Tensor) -> bool:
    """Of a CPU's tensor: others may write to it while the step runs, and must not lose that."""
    return parameter.device.type == "cpu" and parameter.is_shared()


def _raised_alike(stop: Stop, error: BaseException) -> bool:
    failure = stop.failure
    return failure is not None and (failure.type, failure.message) == (
        type(error).__name__,
        said(error),
    )
