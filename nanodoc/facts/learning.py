"""Whether a training learns: its loss beside that of the best constant answer. Pure arithmetic on
evidence; without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nanodoc.facts.calls import CallFacts
from nanodoc.facts.course import is_fixed, is_one_supervised_loss
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
_MOVED = 0.5  # of what the best constant answer to the last targets costs
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
    terms: int = 1
    """How many such loss functions the loss is made of; this one is the largest."""
    other_inputs: float | None = None
    """What it gives with the inputs of other samples, where that was tried."""
    why: str = ""
    """Why there are no figures."""

    @property
    def text(self) -> str:
        """One line, in words."""
        if self.value is None or self.constant is None:
            return f"not compared with a constant answer: {self.why}"
        of = f" (largest of {self.terms} terms)" if self.terms > 1 else ""
        others = ""
        if self.other_inputs is not None:
            others = f", {self.other_inputs:.4g} with the inputs of other samples"
        return (
            f"{self.loss}{of} {self.value:.4g} at the end, {self.constant:.4g} for the best "
            f"constant answer{others}"
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
    return Learning(
        loss=call.name, value=notes.value, constant=notes.constant, terms=_count(evidence)
    )


def no_better_than_constant(evidence: Evidence) -> tuple[CallFacts, ConstantNotes] | None:
    """The loss of a training that ran long enough, and is where a constant answer would be. It is
    the only loss, against targets that no network computes; rewards, critics, adversaries and
    pairs of one batch are not meant."""
    found, losses = _compared(evidence), evidence.losses
    if found is None or evidence.trip is not None or _count(evidence) > 1:
        return None
    if not is_one_supervised_loss(evidence):
        return None
    _, notes = found
    rates = [max(step, default=0.0) for step in (evidence.stats.rates if evidence.stats else ())]
    steps = sum(rate > 0 for rate in rates)
    told = evidence.loop.optimizer_steps if evidence.loop is not None else None
    if min(steps, told if told is not None else steps) < LONG_ENOUGH:
        return None
    if rates[-1] > _WARMING * statistics.median(rates) or not all(map(math.isfinite, losses)):
        return None
    if statistics.median(losses[: len(losses) // 4]) < _MOVED * notes.constant:
        return None  # the targets have grown since
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
    """The loss function of the last step whose part of the loss is the largest, among those for
    which a constant answer is known."""
    best: tuple[float, CallFacts, ConstantNotes] | None = None
    for call in _terms(evidence):
        notes = call.notes.constant
        if notes is None or notes.constant <= 0:
            continue  # all targets are one
        part = abs(notes.value * (call.notes.slope or 0.0))
        if best is None or part >= best[0]:
            best = part, call, notes
    return best[1:] if best is not None else None


def _terms(evidence: Evidence) -> list[CallFacts]:
    """Torch's loss functions in the last step's loss, against targets that no network computes."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    reaching = calls.reaching_the_loss() if calls is not None else frozenset()
    return [
        call
        for call in (calls.calls if calls is not None else ())
        if call.index in reaching
        and call.name in SUPERVISED
        and len(call.arguments) > 1
        and calls is not None
        and is_fixed(calls, call)
    ]


def _count(evidence: Evidence) -> int:
    """Of lines: a loss of each micro-batch is one."""
    return len({(term.name, term.site) for term in _terms(evidence)})


def _why(evidence: Evidence) -> str:
    named = dict.fromkeys(call.name for call in _terms(evidence))
    if named:
        return f"none is known for {', '.join(named)} with these targets"
    return "the loss is not one of torch's loss functions against given targets"
