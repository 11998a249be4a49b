"""Whether a training learns: its loss beside that of the best constant answer. Pure arithmetic on
evidence; without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nanodoc.facts.calls import CallFacts
from nanodoc.facts.course import is_one_supervised_loss
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.notes import ConstantNotes
from nanodoc.vocabulary.calls import SUPERVISED

NO_BETTER = 0.98
"""Of what the best constant answer costs: the rest is chance."""
LONG_ENOUGH = 100  # optimizer steps with a rate above 0
_FEWEST = 10
"""Targets for each class that occurs: the distribution of fewer is not known."""
_SURELY = 2.0  # standard errors
_FAR = 100.0
"""Times what the best constant answer costs: no calibrated model starts there, and falling from
there is no learning."""
_WARMING = 1.5  # times the median rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """A loss function at the end of a run, beside the best constant answer."""

    loss: str
    """The loss function's name; empty where no constant answer is known."""
    value: float | None = None
    """What it gives at the end of the run, its mean over the last batches that were looked at."""
    constant: float | None = None
    """What the best constant answer costs on the targets of the same batches."""
    other_inputs: float | None = None
    """What it gives with the inputs of other samples, where that was tried."""
    why: str = ""
    """Why there are no figures."""

    @property
    def text(self) -> str:
        """One line, in words."""
        if self.value is None or self.constant is None:
            return f"not compared with a constant answer: {self.why}"
        others = ""
        if self.other_inputs is not None:
            others = f", {self.other_inputs:.4g} with the inputs of other samples"
        return (
            f"{self.loss} {self.value:.4g} at the end, {self.constant:.4g} for the best constant "
            f"answer{others}"
        )


def learning_of(evidence: Evidence) -> Learning | None:
    """The line of the report; None of a run that broke, or made no step."""
    if not evidence.losses or evidence.trip is not None or evidence.failure is not None:
        return None
    if evidence.inspection is None:
        return Learning(loss="", why="the last steps were not run again")
    found = _compared(evidence)
    if found is None:
        return Learning(loss="", why=_why(evidence))
    call, notes = found
    return Learning(loss=call.name, value=notes.value, constant=notes.constant)


def no_better_than_constant(evidence: Evidence) -> tuple[CallFacts, ConstantNotes] | None:
    """The loss of a training that ran long enough, and is where a constant answer would be. It is
    the only loss, against targets that no network computes; rewards, critics, adversaries and
    pairs of one batch are not meant."""
    found, losses = _compared(evidence), evidence.losses
    if found is None or evidence.trip is not None or not is_one_supervised_loss(evidence):
        return None
    _, notes = found
    rates = [max(step, default=0.0) for step in (evidence.stats.rates if evidence.stats else ())]
    steps = sum(rate > 0 for rate in rates)
    told = evidence.loop.optimizer_steps if evidence.loop is not None else None
    if min(steps, told if told is not None else steps) < LONG_ENOUGH:
        return None
    if rates[-1] > _WARMING * statistics.median(rates) or not all(map(math.isfinite, losses)):
        return None
    falling = _falls(losses) and notes.value < _FAR * notes.constant
    enough = notes.targets >= _FEWEST * max(notes.kinds, 4)
    if falling or not enough or notes.value < NO_BETTER * notes.constant or notes.constant <= 0:
        return None
    return found


def _falls(losses: Sequence[float]) -> bool:
    """The last quarter is below the second one by more than the spread of the batches explains: the
    run is short."""
    quarter = len(losses) // 4
    before, late = losses[quarter : 2 * quarter], losses[-quarter:]
    spread = math.sqrt((statistics.variance(before) + statistics.variance(late)) / quarter)
    return statistics.fmean(before) - statistics.fmean(late) > _SURELY * spread


def _compared(evidence: Evidence) -> tuple[CallFacts, ConstantNotes] | None:
    """The only loss function of the last step for which a constant answer is known."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    if calls is None:
        return None
    reaching = calls.reaching_the_loss()
    known = [call for call in calls.calls if call.index in reaching and call.notes.constant]
    # a loss of each micro-batch, or of each part: the last is what the run came to
    if not known or len({(call.name, call.site) for call in known}) > 1:
        return None
    call = known[-1]
    assert call.notes.constant is not None
    return call, call.notes.constant


def _why(evidence: Evidence) -> str:
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    reaching = calls.reaching_the_loss() if calls is not None else frozenset()
    losses = [c for c in calls.calls if c.index in reaching] if calls is not None else []
    named = list(dict.fromkeys(call.name for call in losses if call.name in SUPERVISED))
    if len(named) > 1:
        return f"the loss has several terms ({', '.join(named)})"
    if named:
        return f"too few targets of {named[0]} were seen, or its targets have no best constant"
    return "the loss is not one of torch's loss functions"
