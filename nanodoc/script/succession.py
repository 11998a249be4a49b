"""Notices that a script has gone on to another training: in another loop, or in the same one with
another model; or that what was taken for the training is a part of a larger step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.whole_state import WholeState
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.recovered import RecoveredStep

_STEPS_ELSEWHERE = 8
"""So many optimizer steps in a row in other loops are another training; fewer may be a calibration
between two epochs."""
_MOST_INSIDE = 16
"""A loop whose iteration holds at most so many watched steps, and other steps, too, is a step as a
whole: critic steps in one function, and the generator's in another. More are an epoch."""


@dataclass(frozen=True, slots=True)
class Successor:
    """What is to be watched from now on."""

    around: Loop | None = None
    """The loop whose iteration is the step; None where that is still to be found."""


class Succession:
    """Told of every optimizer step while a training is watched."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._begun: dict[int, int] = {}
        self._model: set[int] = set()
        self.own = False
        """An optimizer of the watched training has stepped in the iteration."""
        self.strange = False
        """Another has."""
        self._elsewhere = 0  # optimizer steps outside of the watched loop, since its last iteration

    def began(self, model: torch.nn.Module) -> None:
        """What the training that is watched trains."""
        self._model = {id(parameter) for parameter in model.parameters()}

    def has_grown(self, model: torch.nn.Module) -> bool:
        """The model has parameters that it did not have when the training began."""
        return any(p.requires_grad and id(p) not in self._model for p in model.parameters())

    def other_loop_began(self, loop: Loop, steps: int) -> Loop | None:
        """An iteration of a loop that is not watched, after so many watched steps. The loop, where
        its last iteration has held a few of them."""
        inside = steps - self._begun.get(loop.number, 0)
        self._begun[loop.number] = steps
        return loop if 0 < inside <= _MOST_INSIDE else None

    def iteration(self) -> None:
        """The watched loop begins an iteration."""
        self.own = self.strange = False
        self._elsewhere = 0

    def stepped_inside(
        self,
        optimizer: torch.optim.Optimizer,
        known: list[torch.optim.Optimizer],
        model: torch.nn.Module,
    ) -> bool:
        """An optimizer steps in the watched loop. `known` and `model` are those of the training
        that is watched. Another optimizer of the same model is another training's where the model
        has been given another head; else the training goes on with it: True."""
        known_one = any(optimizer is one for one in known)
        of_model = any(
            id(p) in self._model for group in optimizer.param_groups for p in group["params"]
        )
        if known_one or (of_model and not self.has_grown(model)):
            self.own = True
            return not known_one
        self.strange = True
        return False

    @property
    def of_another_model(self) -> bool:
        """The iteration has trained a model that is none of the watched one's."""
        return self.strange and not self.own

    def stepped_elsewhere(self, frame: FrameType, steps: int) -> Successor | None:
        """An optimizer steps outside of the watched loop, after so many watched steps."""
        self._elsewhere += 1
        around = self._around(frame, steps)
        if around is not None:
            return Successor(around)
        return Successor() if self._elsewhere >= _STEPS_ELSEWHERE else None

    def _around(self, frame: FrameType | None, steps: int) -> Loop | None:
        """A running loop whose iteration has held a few steps of the watched loop."""
        while frame is not None:
            for loop in self._loops.running_in(frame):
                inside = steps - self._begun.get(loop.number, steps)
                if not loop.whole and 0 < inside <= _MOST_INSIDE:
                    return loop
            frame = frame.f_back
        return None


def end_of_training(
    engine: ScriptEngine, recovered: RecoveredStep, conclude: Callable[[], object]
) -> None:
    """Calls `conclude`, which looks at the last steps of a training that is over, and leaves
    everything as it was: the script goes on."""
    now = WholeState(value for _, _, value in recovered.reached_variables())
    engine.replays = engine.replays and now.unsafe is None
    try:
        with (
            state_preserved(engine.runner, engine.keeper),
            recovered.left.again(recovered),
        ):
            conclude()
    finally:
        now.restore()
