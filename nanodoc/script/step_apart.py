"""Why a script's first step does not come to the same when it is run again: by chance, because
something was not put back, or because it computes otherwise while it is watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from nanodoc.errors import UserCodeError
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import run_step
from nanodoc.replay.whole_state import WholeState
from nanodoc.script.fingerprint import Fingerprint
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.trace.op_digests import OpDigests

_WATCHED = "it is the same without nanodoc's watching, which makes it compute otherwise"
_BY_CHANCE = "it differs by chance from run to run"
_UNKNOWN = "further runs are the same: what the first one has changed is not put back"


def why_apart(
    first: Candidate, engine: ScriptEngine, recovered: RecoveredStep, now: WholeState
) -> str:
    """In words, from four further runs: two that nothing watches, and two that are held against
    each other op by op. Empty where they can't be made."""

    def run(listening: AbstractContextManager[object]) -> list[Fingerprint]:
        prints: list[Fingerprint] = []
        recovered.limits.fingerprints = prints
        try:
            with state_preserved(engine.runner, engine.keeper):
                engine.keeper.restore(first.capsule)
                with listening:
                    run_step(engine.runner, first.capsule.batches)
        finally:
            recovered.limits.fingerprints = None
            now.restore()
        return prints

    try:
        return _compared(first, run)
    except UserCodeError:
        return ""


def _compared(
    first: Candidate, run: Callable[[AbstractContextManager[object]], list[Fingerprint]]
) -> str:
    plain = [run(nullcontext()), run(nullcontext())]
    if all(_same(first.fingerprints, prints) for prints in plain):
        return _WATCHED
    once = OpDigests()
    watched = run(once)
    again = OpDigests(once.ops)
    run(again)
    if again.apart is not None:
        return again.apart.said
    return _UNKNOWN if all(_same(watched, prints) for prints in plain) else _BY_CHANCE


def _same(first: Sequence[Fingerprint], other: Sequence[Fingerprint]) -> bool:
    pairs = zip(first, other, strict=False)
    return len(first) == len(other) and all(a.same_as(b) for a, b in pairs)
