"""Whether a run would have done far better with a smaller learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanodoc.experiments.past import Past
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.rates import (
    begins_sure,
    compared,
    enough_lower,
    rate_before_climbing,
    worth_smaller_rates,
)
from nanodoc.facts.trials import RerunFacts
from nanodoc.replay.optimizers import is_adaptive

_HOT_ADAPTIVE = 0.05  # torch's own default is 1e-3, and graph networks are given ten times that
_HOT = 1.0


def smaller_rates(
    evidence: Evidence, optimizers: Sequence[torch.optim.Optimizer], past: Past
) -> RerunFacts | None:
    """The run's steps with smaller rates; first with none above what was well before the loss
    climbed, where it has climbed with the rate. None where that is not worth trying, or can't be
    done."""
    if not worth_smaller_rates(evidence, hot=_hot(evidence, optimizers)):
        return None
    return past.slower(
        len(compared(evidence)) - 1,
        lambda late, highest: enough_lower(evidence, late, highest),
        rate_before_climbing(evidence),
    )


def may_begin_better(evidence: Evidence, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """The run began far too sure, or smaller rates are worth trying."""
    hot = _hot(evidence, optimizers)
    return begins_sure(evidence) is not None or worth_smaller_rates(evidence, hot=hot)


def _hot(evidence: Evidence, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """The learning rate is high for its kind of optimizer: worth a look, and no more."""
    rates = [rate for step in (evidence.stats.rates if evidence.stats else ()) for rate in step]
    adaptive = any(map(is_adaptive, optimizers))
    return bool(rates) and max(rates) >= (_HOT_ADAPTIVE if adaptive else _HOT)


def turned_betas(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[float, float] | None:
    """The betas that all optimizers have, if the first, of the average of the gradients, reaches
    back farther than the second, of their squares."""
    given = {optimizer.defaults.get("betas") for optimizer in optimizers}
    betas: Any = given.pop() if len(given) == 1 else None
    if not isinstance(betas, tuple) or len(betas) != 2:
        return None
    first, second = betas
    known = isinstance(first, float) and isinstance(second, float)
    return (first, second) if known and first > second else None
