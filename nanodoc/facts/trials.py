"""What experiments on a sick step and on the steps before it showed, as plain frozen facts for
rules and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanodoc.facts.linear_maps import JoinedLayers
from nanodoc.facts.source import SourceSpan

_ENORMOUS = 1_000.0  # times the weights of step 0
_RAISED = 1.5  # times the learning rate that was given: the schedule is part of the story

PASSES, FAILS = "passes", "fails too"

UNBOUNDED = 1e4
"""Times the loss at the start, below zero: a loss that fell so far has no lower bound."""
HARDLY_MOVED = 0.02
"""Of the weights' own size: what happens then is not theirs."""
PRECISION, DATA, WEIGHTS, MATHEMATICS, ENVIRONMENT = (
    "precision",
    "data",
    "weights",
    "mathematics",
    "environment",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One thing changed, and what came of it. `key` is what `--experiment` takes; `outcome` is
    `PASSES`, `FAILS`, or says why it was not run."""

    key: str
    name: str
    outcome: str
    loss: float | None = None
    seconds: float | None = None

    @property
    def ran(self) -> bool:
        return self.outcome in (PASSES, FAILS)

    def row(self) -> Mapping[str, Any]:
        """As the report shows it."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "loss": self.loss,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A stretch of the run's steps, run again with one thing changed."""

    name: str
    rate: float
    """Times the learning rates."""
    clip: float | None
    """The gradient norm clipped to."""
    passes: bool
    """Every step was finite, and the loss did not grow."""
    last_loss: float | None
    finite: bool = False
    """Every step was finite, whatever the loss did."""
    seconds: float | None = None
    highest: float | None = None
    """No learning rate was above this one."""

    @property
    def outcome(self) -> str:
        """In words."""
        if self.passes:
            return "passes"
        if self.finite and self.last_loss is not None:
            return f"finite, ends at a loss of {self.last_loss:.3g}"
        return "fails too"


CLIPPING, WEIGHT_DECAY, RATE = "clipping", "weight decay", "rate"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBackFacts:
    """What kept a run from learning: without it, the same steps learn."""

    kind: str
    """CLIPPING, WEIGHT_DECAY or RATE."""
    value: float | None
    """The largest norm that is let through, the weight decay, or the learning rate; None where
    groups differ."""
    steps: int
    """The first so many of the run, run again without it."""
    loss: float
    """The late loss that they came to in the run."""
    without: float
    """The late loss that they come to without it."""
    factor: float = 1.0
    """Times the learning rate, of a RATE."""
    site: SourceSpan | None = None
    """The call that clips."""
    norm: float | None = None
    """The median gradient norm before it was clipped; the largest value, where values are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MendedCall:
    """The only call before an exception that, changed, lets the step through."""

    op: str
    location: SourceSpan
    was: str
    """What it was told: "dim=0"; "" where the change is no other argument."""
    instead: str
    """What it is told in the trial: "dim=1", "without half()"."""
    loss: float | None
    """Of the step with the change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnsWithout:
    """The call which, made in another way, lets a run learn that had learnt nothing."""

    op: str
    location: SourceSpan
    was: str
    """As in `MendedCall`."""
    instead: str
    steps: int
    """The first so many of the run, run again with the change."""
    loss: float
    """The late loss that they came to in the run."""
    without: float
    """The late loss that they come to with the change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BetweenFacts:
    """Two linear layers with nothing between them, where early steps come further with ReLU
    there."""

    layers: JoinedLayers
    steps: int
    """So many early ones, run again."""
    loss: float
    """The late loss that they came to in the run."""
    changed: float
    """The late loss that they come to with ReLU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThawedFacts:
    """Parameters that are frozen at their first values, and with which trained the run comes
    further."""

    parameters: tuple[str, ...]
    location: SourceSpan
    """The line that froze the first of them."""
    steps: int
    """So many early ones, run again."""
    loss: float
    """The late loss that they came to in the run."""
    trained: float
    """The late loss that they come to with the parameters trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RerunFacts:
    """How the run came to where it broke: growth that was measured, and stretches that were run
    again."""

    start: int
    """The step the stretches begin at."""
    until: int
    """The step that failed, the last of each stretch."""
    repeated: bool
    """Run again as it was, the stretch ended as the run had."""
    stretches: tuple[Stretch, ...] = ()
    alike: bool = False
    """With weights that do not move, no batch costs far more than the others."""

    def passing(self) -> tuple[Stretch, ...]:
        return tuple(stretch for stretch in self.stretches if stretch.passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """A loss that is larger than the mean over its samples."""

    times: float
    """As large as that."""
    how: str
    """"sum", "product", or "micro-batches" that are not divided by their number."""
    line: SourceSpan | None
    last_loss: float | None = None
    """Where the run's steps end with learning rates that many times lower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenWeights:
    """Weights that no optimizer holds, and that a line of the step writes."""

    name: str
    """The parameter that has moved furthest."""
    times: float
    """Norm of all such weights over what it was at step 0."""
    others: float
    """The same of the weights that the optimizers hold."""
    line: SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class WideWeights:
    """First weights that are too wide: with narrower ones the same steps do not diverge, or end far
    lower."""

    name: str
    """Of the widest."""
    times: float
    """Its standard deviation over sqrt(2 / fan_in), or over torch's own."""
    layers: int
    """How many layers were made narrower."""
    first_loss: float
    """With narrower ones."""
    last_loss: float
    line: SourceSpan | None
    he: bool = True
    """They were made as wide as He's; else as torch's own, 1 / sqrt(3 fan_in)."""
    own: bool = False
    """`times` is over torch's own."""

    @property
    def usual(self) -> str:
        """What `times` compares with."""
        return "torch's own" if self.own else "sqrt(2 / fan_in)"

    @property
    def width(self) -> str:
        """The standard deviation that they were given."""
        return "sqrt(2 / fan_in)" if self.he else "1 / sqrt(3 fan_in)"


@dataclass(frozen=True, kw_only=True, slots=True)
class FarInputs:
    """Inputs far from mean 0 and deviation 1: standardised, the same steps with the same learning
    rates do not diverge, or end far lower."""

    path: str
    """Of the batch's part."""
    minimum: float
    maximum: float
    module: str | None
    """The layer that takes them first."""
    last_loss: float
    """With standardised ones."""
    diverged: bool = False
    """The run had; else it ends far above, or has learnt nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """What had grown before a step broke. Ratios; None where they can't be told."""

    loss: float | None = None
    """Last finite loss over the first."""
    norm: float | None = None
    """Largest finite gradient norm of the last steps over the median of those before."""
    weights: float | None = None
    """Norm of all weights over what it was at step 0."""
    fastest: str | None = None
    """The parameter that grew most."""
    fastest_ratio: float | None = None
    moved: float | None = None
    """How far all weights are from those of step 0, over the norm of those."""
    began: int | None = None
    """The step from which on the loss was more than twice its start."""
    rate_given: float | None = None
    rate_highest: float | None = None
    """Learning rates of the only optimizer: as it was made, and the highest until the loss had
    begun to grow; None where groups differ."""
    only_rate: bool = False
    """No other learning rate was ever used."""
    rate_set_at: SourceSpan | None = None
    """The line that sets the rate by hand in every step, where it was raised so."""
    written: WrittenWeights | None = None
    """Those that have grown far more than what the optimizers hold."""
    wide: WideWeights | None = None
    scaled: LossScale | None = None
    """What makes the loss larger than a mean, where a mean would have cured the run."""
    steps: int = 0
    """With a finite loss."""

    @property
    def raised(self) -> bool:
        """The rate had come to half as much again as it was given, and more."""
        given, highest = self.rate_given, self.rate_highest
        return given is not None and highest is not None and highest > _RAISED * given

    @property
    def seen(self) -> bool:
        """Loss (RULES: twice its start) or gradients (RULES: ten times their median) had grown out
        of all proportion; weights, too, where a step or two is no history to tell by. Weights alone
        may grow in a run that learns, but not a thousandfold: a loss that stays where guessing is
        says nothing of them."""
        weights, fastest = self.weights or 0, self.fastest_ratio or 0
        short = self.steps < 3 and (weights > 3 or fastest > 30)
        return (self.loss or 0) > 2 or (self.norm or 0) > 10 or short or weights > _ENORMOUS


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnedBetas:
    """The betas of averages of the gradient and of its square, where the run does not diverge with
    each in the other's place."""

    first: float
    second: float
    last_loss: float
    """With them turned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """All experiments on one step, and what their pattern says."""

    experiments: tuple[Experiment, ...] = ()
    cause: str | None = None
    """PRECISION, DATA, WEIGHTS, MATHEMATICS or ENVIRONMENT; None where the experiments don't
    decide."""
    why: str = ""
    growth: Growth | None = None
    course: RerunFacts | None = None
    wide: WideWeights | None = None
    """Of a finite run that ends far lower with narrower ones."""
    slower: RerunFacts | None = None
    """The steps from the first one on with smaller learning rates, in a finite run."""
    scaled: LossScale | None = None
    """What makes the loss larger than a mean, where a finite run with a mean ends far lower."""
    held_back: HeldBackFacts | None = None
    without: LearnsWithout | None = None
    thawed: ThawedFacts | None = None
    between: BetweenFacts | None = None
    mended: MendedCall | None = None
    """Of a step that raises."""
    far: FarInputs | None = None
    betas: TurnedBetas | None = None

    def passes(self, key: str) -> bool | None:
        """Whether the step passed with this change; None where it was not run."""
        found = next(
            (
                experiment
                for experiment in self.experiments
                if experiment.key == key and experiment.ran
            ),
            None,
        )
        return None if found is None else found.outcome == PASSES
