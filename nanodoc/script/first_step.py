"""A script's first step, run once more: does it come to the same, bit by bit? On an accelerator,
whose kernels may add in another order each time, but for rounding?"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from nanodoc.errors import said
from nanodoc.examination.retained_tensors import freed_in
from nanodoc.facts.graph import graph_failure
from nanodoc.heartbeat.trail import here
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.replay.local_collectives import accumulates_unused, several_ranks
from nanodoc.replay.own_memory import shared_parameter
from nanodoc.replay.parts import of_others_too
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.whole_state import WholeState
from nanodoc.script.fingerprint import Fingerprint, differences
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.script.step_apart import why_apart
from nanodoc.script.threads import another_is_at_work
from nanodoc.trace.eager import of_compiler

# of a tensor that was overwritten: putting it back for the second run was a write, too
_VERSION = re.compile(r"version \d+")


@dataclass(frozen=True, slots=True)
class RunAgain:
    """How it ended."""

    same: bool | None = None
    """Losses and gradients were bitwise the script's own; of a step that raised, the error. None
    where it was not run."""
    rounded: bool = False
    """They were so but for rounding."""
    differs: str = ""
    """By how much they were not."""
    why: str = ""
    """Why they were not, as far as further runs tell."""
    stop: Stop | None = None
    """What was wrong with it."""
    holds: bool = False
    """What is run again, from now on, says what the script's own steps say."""
    unsafe: str = ""
    """Why no step can be run again."""
    together: bool = False
    """All ranks together could do it."""
    deferred: str = ""
    """Why it was not run as long as the script goes on."""
    freed: bool = False
    """Its first run has freed a graph that began before it."""

    @property
    def alike(self) -> str:
        """In words."""
        if self.rounded:
            return "the same up to rounding"
        return f"{'bitwise' if self.same else 'not'} the same"


def run_again(
    first: Candidate, engine: ScriptEngine, recovered: RecoveredStep, error: BaseException | None
) -> RunAgain:
    """Runs it from its start, under every watcher; the script's own state is left as it was.
    `error` is what the script's own step raised, if anything. Of several ranks each runs it by
    itself."""
    healthy = error is None and first.finite
    parts = of_others_too(engine.recipe.model)
    drawn = recovered.draws_unseen() if healthy else None
    now = WholeState(value for _, _, value in recovered.reached_variables())
    unsafe = (
        (f"{drawn}, an iterator whose values nanodoc does not record")
        if drawn is not None
        else now.unsafe
    )
    unsafe = unsafe or _computed(engine)
    if parts is not None or unsafe is not None:
        return RunAgain(unsafe=parts or unsafe or "", together=unsafe is None)
    shared = shared_parameter(engine.recipe.model)
    if healthy and shared is not None:
        # others may write to it while the step runs, and must not lose that
        return RunAgain(deferred=f"other processes share the memory of {shared}")
    if healthy and another_is_at_work():
        return RunAgain(deferred="another thread of the script is running")
    if healthy and accumulates_unused(engine.recipe.model):
        return RunAgain(
            deferred="DistributedDataParallel is collecting unused parameters under no_sync()"
        )
    # Whether the other ranks can run theirs again is not known: each does it without them.
    alone = several_ranks()
    if alone and first.trained.scaled and error is None and not first.finite:
        return RunAgain(deferred="its loss scaler met non-finite gradients")
    engine.alone.begin(broken_off=error is not None)
    compared = alone and healthy and _can_be_compared(first, engine)
    watch = engine.rank_gradients
    listening: AbstractContextManager[None] = nullcontext()
    if compared:
        recovered.limits.around_backward = watch.around_backward
        listening = watch.listening(engine.recipe.optimizers[0])
    again = None
    rounds = engine.runner.device.type != "cpu"
    try:
        with listening:
            ended = _run(first, engine, recovered, now, error)
        again = _compared(first, *ended, error, alone=alone, rounds=rounds)
        if not alone:
            again = _with_reason(again, first, engine, recovered, now)
    finally:
        recovered.limits.around_backward = None
        if again is None or again.stop is None:
            engine.going_on()
    if error is None and not again.same and (why := _freed(first, engine, ended[0])):
        return RunAgain(deferred=why, freed=True)
    if compared and again.same:
        watch.take(first.fingerprints[0].gradients)
    if alone and healthy and not again.same:
        why = "without the other ranks, it does not reproduce"
        return RunAgain(deferred=why, together=True)
    return again


def _with_reason(
    again: RunAgain,
    first: Candidate,
    engine: ScriptEngine,
    recovered: RecoveredStep,
    now: WholeState,
) -> RunAgain:
    if not again.differs or not first.finite or first.steps_first:
        return again
    return replace(again, why=why_apart(first, engine, recovered, now))


def _freed(first: Candidate, engine: ScriptEngine, ended: Stop | str | None) -> str:
    """The second run raised for a graph that the first has freed, and whose; else empty."""
    failure = ended.failure if isinstance(ended, Stop) else None
    raised = graph_failure(failure.message) if failure is not None else None
    if raised not in ("backward-twice", "overwritten"):
        return ""
    kept = freed_in(engine.recipe) if first.finite else None
    if kept is None and first.around is None:
        return ""
    return f"its first run has freed the graph of {kept or 'a tensor'}, made before it"


def _computed(engine: ScriptEngine) -> str | None:
    """What an optimizer trains and the script has computed by now: its graph, over earlier steps,
    can't be put back."""
    computed = (name for name, p in engine.recipe.model.named_parameters() if not p.is_leaf)
    name = next(computed, None)
    return None if name is None else f"{name}, a trained tensor that is not a leaf"


def _can_be_compared(first: Candidate, engine: ScriptEngine) -> bool:
    """The gradients of one backward pass are what the step's one optimizer used, and a function
    mode may listen: neither compiled code nor a fused path runs otherwise under one."""
    return (
        len(engine.recipe.optimizers) == len(first.fingerprints) == 1
        and first.capsule.grads is None
        and not engine.computes_otherwise()
    )


def _run(
    first: Candidate,
    engine: ScriptEngine,
    recovered: RecoveredStep,
    now: WholeState,
    error: BaseException | None,
) -> tuple[Stop | str | None, list[Fingerprint]]:
    """What ended it, if anything, and what it came to."""
    limits = recovered.limits
    # what raised came behind the last optimizer step that was made
    behind = error is not None or first.steps_first
    limits.optimizer_steps = max(1, first.optimizer_steps + behind)
    prints: list[Fingerprint] = []
    limits.fingerprints = prints
    try:
        with state_preserved(engine.runner, engine.keeper):
            ended = engine.first(
                first.capsule,
                first.indices,
                trained=first.backwards > 0,
                steps_first=first.steps_first,
            )
    finally:
        limits.fingerprints = None
        now.restore()
    return ended, prints


def _compared(
    first: Candidate,
    ended: Stop | str | None,
    prints: list[Fingerprint],
    error: BaseException | None,
    *,
    alone: bool,
    rounds: bool,
) -> RunAgain:
    """`alone`: without the other ranks, whose gradients are in the script's own. `rounds`: on a
    device that may add in another order each time."""
    stop = ended if isinstance(ended, Stop) else None
    failed = stop is not None and stop.failure is not None
    rounded = False
    if error is not None:
        same = stop is not None and _raised_alike(stop, error)
    else:
        # a step that is sick is looked at in its middle, and run again to its end
        of_then = prints if first.finite else prints[: len(first.fingerprints)]
        pairs = list(zip(first.fingerprints, of_then, strict=False))
        as_many = len(of_then) == len(first.fingerprints) and not failed
        same = as_many and all(a.same_as(b, losses_alone=alone) for a, b in pairs)
        if as_many and not same:
            same = rounded = all(a.near(b, exact=not rounds, losses_alone=alone) for a, b in pairs)
    is_true = same or (not failed and not first.finite)
    return RunAgain(
        same=same,
        rounded=rounded,
        differs=""
        if same or error is not None or failed
        else differences(first.fingerprints, of_then),
        stop=stop if is_true else None,
        # a rank that is well by itself has its sick gradients from another
        holds=is_true and ended is None and (first.finite or not alone),
    )


def as_it_ran(first: Candidate, engine: ScriptEngine) -> Stop | None:
    """The course of a run whose first step is not run again begins with what the script came to;
    or that was sick. Under a loss scaler it is not told: the losses are scaled, and the scaler
    leaves out what is not finite."""
    if first.trained.scaled:
        return None
    if not first.finite:
        return engine.first_was_sick(first.fingerprints[-1].losses)
    losses = [loss for seen in first.fingerprints for loss in seen.losses]
    gradients = [g for seen in first.fingerprints for g in seen.gradients if g is not None]
    if losses:
        engine.first_was_well(losses, gradients)
    return None


def _raised_alike(stop: Stop, error: BaseException) -> bool:
    failure = stop.failure
    if failure is not None and of_compiler(error):
        return True  # what is run again is not compiled, and raises what the code itself does
    return failure is not None and (failure.type, _VERSION.sub("", failure.message)) == (
        type(error).__name__,
        _VERSION.sub("", said(error)),
    )


def steps_come_to_the_same(engine: ScriptEngine, recovered: RecoveredStep) -> bool:
    """The last few steps, run again one after the other, come to the losses and weights that they
    came to; the script's own state is left as it was. What has a graph by now can't be."""
    if another_is_at_work() or _computed(engine) is not None:
        return False
    now = WholeState(value for _, _, value in recovered.reached_variables())
    if now.unsafe is not None:
        return False
    engine.alone.begin()
    here().examining()
    try:
        limits = recovered.limits
        limits.reach = None
        with state_preserved(engine.runner, engine.keeper, moving=True):
            short = engine.come_to_the_same()
        if not limits.reach:
            limits.reach = 0
            return short
        now.restore()
        # what stands behind the optimizer's step may move what a later step reads
        with state_preserved(engine.runner, engine.keeper, moving=True):
            far = engine.come_to_the_same()
        limits.reach = limits.reach if far else 0
        return short or far
    finally:
        now.restore()
        engine.going_on()
