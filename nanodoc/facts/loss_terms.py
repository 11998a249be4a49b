"""The terms that a loss is the sum of. Like `evidence`: without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.vocabulary.calls import ADDITIONS, SCALINGS


@dataclass(frozen=True, slots=True)
class Term:
    """A single number that a loss rises or falls with in proportion."""

    call: CallFacts
    turned: CallFacts | None
    """The call nearest to the loss that may have turned its sign."""


def terms_of(calls: StepCalls, root: CallFacts) -> Iterator[Term]:
    """Whatever is added up, subtracted and multiplied by numbers on the way to `root`, itself and
    what it is made of; sums and means of vectors are looked at, and not into."""
    waiting, seen = [Term(root, None)], {root.index}
    while waiting:
        term = waiting.pop()
        yield term
        call = term.call
        scaled = call.name in SCALINGS
        if (
            not scaled
            and call.name not in ADDITIONS
            and not (call.same_values and call.name != "mean")
        ):
            continue
        learning = [argument for argument in call.arguments if argument.requires_grad]
        if scaled and len(learning) != 1:  # a product of two terms
            continue
        for argument in learning:
            inner = calls.maker(argument)
            if inner is None or inner.index in seen or inner.shape not in ((), (1,)):
                continue
            seen.add(inner.index)
            first = argument is call.arguments[0]
            taken = call.name == "sub" and call.notes.number.taken_from is not None
            turns = scaled or taken or (call.name == "sub" and not first)
            waiting.append(Term(inner, term.turned or (call if turns else None)))
