"""What a policy gradient weights the actions of an episode with, what it pushes out of its bounds,
and which targets read the value of the next state. Like `evidence`: without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nanodoc.facts.source import SourceSpan

FEWEST_GOING_ON = 8
"""Samples whose episode goes on, from which it is known what is an end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnFacts:
    """The weights of an episode's log-probabilities, which are sums of its rewards."""

    actions: int
    """Of the episode."""
    rewards: str
    """How the user's code names the rewards."""
    of_environment: bool = False
    """The step reaches a Gymnasium environment, which gives rewards: more is better. Of other
    numbers that is not known: they may be costs."""
    discount: float
    """Of the sums that the weights are, shifted and scaled."""
    order: str
    """`to-go`: each is the sum of the rewards from its action on. `so-far`: of those up to its
    action. `reversed`: the sums from its action on, in the opposite order. The last two are the
    same where all rewards are. `so-far-reversed`: those of `so-far`, in the opposite order."""
    rising: bool
    """A step makes actions of a larger return more probable."""
    summed_at: SourceSpan | None = None
    """The line that makes the order: the loop's, or the one that stores its sums."""
    weighted_at: SourceSpan | None = None
    """The line that multiplies a log-probability with its weight."""
    redrawn: int = 0
    """How many of the log-probabilities are those of a draw before which its distribution had drawn
    another one."""
    asked_at: SourceSpan | None = None
    """The line that asks for the first of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PushedFacts:
    """Values beyond the bounds that they are clamped to, and what the step does with them."""

    values: int
    outside: int
    """Beyond a bound."""
    pushed: int
    """Of these, those that the step takes further out."""
    moved: bool
    """They were put beyond their bounds on trial."""
    chosen: str
    """The call that takes one of a term with the value and the term with the clamped value."""
    chosen_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TransitionFacts:
    """Samples of a regression whose target is a reward plus a network's value of the next state."""

    samples: int
    """Of one batch."""
    going_on: int
    """Of all batches that were looked at, those whose next state is the state of another sample."""
    read_going_on: int
    """Of these, those whose target changes with their next state."""
    ending: int
    """Those whose next state is no other sample's state."""
    read_ending: int
    together: bool
    """Most targets change where all next states are others."""
    flags: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of what the user's code holds of zeros and ones, one a sample: (the ones, and of these the
    samples whose target changes with their next state)."""
    no_flags: frozenset[str] = frozenset()
    """Those of them that were one where an episode goes on, or that are the rewards themselves."""
    paid_apart: frozenset[str] = frozenset()
    """Those whose samples are paid far more, or less, than the others: an end by a limit of time is
    not."""

    @property
    def unread_ends(self) -> dict[str, int]:
        """What marks ends of episodes, none of which any target heeds: how many."""
        known = self.going_on >= FEWEST_GOING_ON and 2 * self.read_going_on > self.going_on
        if not known or self.read_ending < self.ending:
            return {}
        return {
            name: ones
            for name, (ones, read) in self.flags.items()
            if name not in self.no_flags and ones and ones == read
        }
