"""A closer look at an exception of the user's: the step or the batch that raised, once more, with
its calls, its memory or its samples written down."""

from __future__ import annotations

import contextlib
import gc
import itertools
import traceback
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType, FunctionType

import torch

from nanodoc import accelerator
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.collate import ragged_as_drawn, ragged_facts
from nanodoc.examination.left_range import left_range
from nanodoc.examination.memory import SavedLog, memory_facts
from nanodoc.examination.parameter_groups import Ownership
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.crash import CrashFacts, LeftRange
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import about_an_index, out_of_memory
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.batch_source import BatchSource
from nanodoc.replay.local_collectives import reduced_parameters
from nanodoc.replay.optimizers import odd_state
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import Replayer, leaves_of
from nanodoc.tensors.nested import batch_size
from nanodoc.trace.calls import CallLog
from nanodoc.trace.eager import COMPILERS, run_eagerly
from nanodoc.trace.files import USER, frame_kind

# An error of our own, or one more for want of memory, must not hide the user's.
_HARMLESS = (
    UserCodeError,
    UsageError,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    NotImplementedError,
    MemoryError,
    OSError,
)


def make_room(error: UserCodeError, device: torch.device) -> None:
    """Lets go of what the frames of a step that failed for want of memory hold, so that it can be
    looked at."""
    ended = error.cause.__traceback__
    traceback.clear_frames(ended)
    _empty_closures([frame for frame, _ in traceback.walk_tb(ended)])
    accelerator.empty_cache(device)


def _empty_closures(frames: list[FrameType]) -> None:
    """A cleared frame still holds its function, and that what it has closed over: Module.__call__
    runs the forward in a function of its own, which holds the module's inputs. Only a function that
    the frame before it has made, and that is not the user's, is emptied: nobody else calls it."""
    for maker, frame in itertools.pairwise(frames):
        made_here = frame.f_code.co_qualname.startswith(f"{maker.f_code.co_qualname}.<locals>.")
        if not made_here or frame_kind(frame.f_code.co_filename) == USER:
            continue
        for function in gc.get_referents(frame):
            if isinstance(function, FunctionType) and function.__code__ is frame.f_code:
                for cell in function.__closure__ or ():
                    with contextlib.suppress(ValueError):  # empty already
                        del cell.cell_contents


class FailureLook:
    """Looks at one exception of one recipe's run, when the run is over."""

    def __init__(
        self, runner: StepRunner, keeper: StateKeeper, build: BuildFacts, feed: BatchSource
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._feed = feed
        self.eagerly: Failure | None = None
        """What the step raised without its compiler, where the compiler had raised."""

    def at_glance(self, capsule: StepState, indices: Sequence[int] | None) -> CrashFacts:
        """What is known of a step without running it again, or reading anything of its device."""
        size = batch_size(capsule.batches[0]) if capsule.batches else None
        return CrashFacts(
            batch_size=size,
            usual_batch_size=self._feed.usual_size,
            indices=tuple(indices or ()),
            spread=self._runner.spread,
        )

    def at_step(
        self, failure: Failure, capsule: StepState, indices: Sequence[int] | None
    ) -> tuple[CrashFacts, tuple[RangeFacts, ...]]:
        """Runs the step until it raises again. (facts, indices and labels out of range)"""
        facts = self.at_glance(capsule, indices)
        if "finished reduction" in failure.message:
            named = reduced_parameters(self._runner.recipe.model)
            frozen = [name for name, p in named if not p.requires_grad]
            facts = replace(
                facts,
                reduced=tuple(name for name, _ in named),
                frozen=tuple((name, self._build.frozen_at(name)) for name in frozen),
            )
        size = facts.batch_size
        if failure.phase == "optimizer":
            facts = replace(facts, state=odd_state(self._runner.recipe))
        memory = out_of_memory(failure)
        saved = SavedLog(self._runner.recipe.model) if memory else None
        through: list[int] = []  # micro-batches whose loss came
        log: CallLog | None = None
        error: BaseException | None = None
        call = None
        kept = state_preserved(
            self._runner, self._keeper, on_host=memory and self._runner.device.type != "cpu"
        )
        with contextlib.suppress(*_HARMLESS), kept, warnings_unsaid(), run_eagerly():
            self._keeper.restore(capsule)
            batches = [self._runner.moved(batch) for batch in capsule.batches]
            unregistered = Ownership(self._runner.recipe, self._build).unregistered_parameters()
            log = CallLog(
                self._runner.recipe.model,
                [*leaves_of(self._runner.recipe.model, batches), *unregistered],
            )
            try:
                with log, saved or contextlib.nullcontext():
                    run_step(self._runner, batches, on_loss=lambda loss: through.append(1))
            except UserCodeError as raised:
                error = raised.cause
                if failure.origin.startswith(COMPILERS):
                    self.eagerly = describe_failure(raised)
            if error is not None:
                call = log.failed(error, self._build.layer_made_at)
                error.__traceback__ = None  # its frames hold what the step made
        held = memory_facts(self._runner.recipe, capsule.batches, saved, size) if memory else None
        if len(capsule.batches) > 1 and len(through) < len(capsule.batches):
            sizes = [batch_size(batch) or 0 for batch in capsule.batches]
            start, size = sum(sizes[: len(through)]), sizes[len(through)]
            facts = replace(
                facts,
                batch_size=size,
                indices=facts.indices[start : start + size]
                if sum(sizes) == len(facts.indices)
                else (),
            )
        ranges = tuple(log.ranges) if log is not None else ()
        left = None
        if error is not None:
            left = self._left_range(failure, capsule, ranges)
        return replace(facts, call=call, memory=held, left=left), ranges

    def _left_range(
        self, failure: Failure, capsule: StepState, ranges: Sequence[RangeFacts]
    ) -> LeftRange | None:
        found = ranges[-1] if ranges and about_an_index(failure) else None
        replayer = Replayer(self._runner, self._keeper)
        with contextlib.suppress(*_HARMLESS), state_preserved(self._runner, self._keeper):
            return left_range(replayer, capsule, failure, found)
        return None

    def at_batch(self, failure: Failure, error: BaseException) -> CrashFacts | None:
        """Looks at the samples of the batch that could not be loaded."""
        if out_of_memory(failure):
            return CrashFacts(memory=memory_facts(self._runner.recipe, [], None, None))
        indices = self._feed.failing
        if indices is None and failure.collating:  # a script draws its batches itself
            with contextlib.suppress(*_HARMLESS):
                ragged = ragged_as_drawn(error, failure)
                return CrashFacts(ragged=ragged, indices=ragged.indices if ragged else ())
        if indices is None or not failure.collating:
            return CrashFacts(indices=tuple(indices or ()))
        with contextlib.suppress(*_HARMLESS), warnings_unsaid():
            ragged = ragged_facts(self._runner, self._keeper, self._build, indices, failure)
            return CrashFacts(ragged=ragged, indices=tuple(indices))
        return CrashFacts(indices=tuple(indices))
