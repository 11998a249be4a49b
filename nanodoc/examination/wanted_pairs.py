"""What a contrastive loss pairs the samples of its batch with."""

from __future__ import annotations

import os

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.inspection import PairFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.repeating import lines_repeating
from nanodoc.vocabulary.calls import CLASSIFICATION


def pairs_of(calls: StepCalls) -> PairFacts | None:
    """Of the loss, or of the comparison of its labels with each other; None where nothing pairs."""
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        pairs = call.notes.pairs
        if pairs is None or not (call.index in reaching or call.notes.paired_by_labels):
            continue
        loss = call.name in CLASSIFICATION
        asked = call if loss else next(c for c in calls.calls if c.notes.paired_by_labels)
        return PairFacts(
            call=asked.index,
            samples=call.shape[0] if not loss else call.arguments[0].shape[0],
            wanted=pairs.wanted,
            in_halves=pairs.in_halves,
            side_by_side=pairs.side_by_side,
            same=pairs.same,
            repeated_at=_repeated_at(call) if pairs.same else None,
        )
    return None


def _repeated_at(call: CallFacts) -> SourceSpan | None:
    site = call.site
    file = os.path.abspath(site.file) if site is not None else ""
    found = lines_repeating(file) if frame_kind(file) == USER and os.path.isfile(file) else []
    return found[0] if len(found) == 1 else None


def away(pairs: PairFacts) -> float:
    """How much nearer than what is wanted the pairs of another order are."""
    return max(pairs.in_halves, pairs.side_by_side) - pairs.wanted
