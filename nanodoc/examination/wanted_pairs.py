"""What a contrastive loss pairs the samples of its batch with."""

from __future__ import annotations

from nanodoc.facts.calls import CLASSIFICATION, StepCalls
from nanodoc.facts.inspection import PairFacts


def pairs_of(calls: StepCalls) -> PairFacts | None:
    """Of the loss, or of the comparison of its labels with each other; None where nothing pairs."""
    reaching = calls.reaching_the_loss()
    told = [c for c in calls.calls if "pairs_wanted" in c.notes]
    call = next((c for c in told if c.index in reaching or "pairing" in c.notes), None)
    if call is None:
        return None
    loss = call.name in CLASSIFICATION
    asked = call if loss else next(c for c in calls.calls if "pairing" in c.notes)
    return PairFacts(
        call=asked.index,
        samples=call.shape[0] if not loss else call.arguments[0].shape[0],
        wanted=call.notes["pairs_wanted"],
        in_halves=call.notes["pairs_in_halves"],
        side_by_side=call.notes["pairs_side_by_side"],
    )


def away(pairs: PairFacts) -> float:
    """How much nearer than what is wanted the pairs of another order are."""
    return max(pairs.in_halves, pairs.side_by_side) - pairs.wanted
