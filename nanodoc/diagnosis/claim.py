"""A claim on a root cause, and the confidence it earns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from nanodoc.diagnosis.finding import Finding

RootKey = tuple[Any, ...]


class Stage(IntEnum):
    """Where in a training a root cause lies. Of findings of one severity the earlier stage comes
    first: values that are not finite and exceptions before mistakes of the loop that only cost
    progress, and these before what the training came to."""

    WEIGHTS = auto()
    """What was wrong before the step's first op: weights, or calls that make every value wrong."""
    STEP = auto()
    """An op, a call or an exception of one step; `Claim.position` is its index."""
    LOOP = auto()
    """The order in which the loop clears, differentiates and steps."""
    SCHEDULE = auto()
    WIRING = auto()
    """What is compared with what, and what goes into what."""
    DATA = auto()
    PRECISION = auto()
    LEARNING = auto()
    """What does not learn, and why."""
    OUTCOME = auto()
    """What the loss did over the whole run."""
    OWNERSHIP = auto()
    """Which optimizer holds which parameter."""
    NOTE = auto()
    """Said after everything else."""


class Specificity(IntEnum):
    """How specific an explanation is. Of several claims on one root the most specific wins, then
    the one with the higher confidence."""

    FALLBACK = auto()
    """Says what happened where no other rule knows why."""
    FAMILY = auto()
    """The general case."""
    SPECIAL = auto()
    """A named case of it."""
    EXACT = auto()
    """A case whose cause was seen itself: the index, the sample, the call."""


class Scope(IntEnum):
    """How much of the training shows it. What layers or the model came to is no finding beside a
    cause of it."""

    CAUSE = auto()
    LAYERS = auto()
    MODEL = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a rule says of one root cause."""

    root: RootKey
    specificity: Specificity
    finding: Finding
    stage: Stage = Stage.STEP
    position: int = 0
    """Orders the claims of one stage; in `Stage.STEP` the index of the op."""
    scope: Scope = Scope.CAUSE


OBSERVED = 1.0
"""Confidence in what was observed and names its own cause: a module that is missing, a signal. No
evidence could earn it."""


def confidence(*confirmations: float) -> float:
    """The chance that not all of several independent confirmations mislead: 1 − Π(1 − wᵢ), each wᵢ
    in [0, 1)."""
    doubt = 1.0
    for weight in confirmations:
        doubt *= 1.0 - min(max(weight, 0.0), 0.95)
    return 1.0 - doubt
