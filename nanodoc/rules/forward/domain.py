"""ND201, ND202, ND206, ND303: a function asked for a value it doesn't have. Logs, roots,
divisions."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth, OpFacts, ValuesAt
from nanodoc.vocabulary.ops import PROBABILITIES


def at_failure(op: OpFacts, position: int = 0) -> ValuesAt | None:
    """The values of one input where the output is bad; the whole input's range where that wasn't
    looked at."""
    if position < len(op.values_at) and op.values_at[position] is not None:
        return op.values_at[position]
    if position < len(op.inputs):
        fact = op.inputs[position]
        return ValuesAt(
            minimum=fact.minimum,
            maximum=fact.maximum,
            zeros=fact.zeros,
            count=fact.numel,
            inf=fact.inf,
        )
    return None


def forward_births(evidence: Evidence) -> Iterable[Birth]:
    # a hook or a custom backward is the user's code too: no derivative, but an op with a line of
    # its own
    return (birth for birth in evidence.births if birth.phase == "forward" or birth.forward is None)


def probability_source(birth: Birth) -> str | None:
    """ "softmax" or "sigmoid" if that is what, up to clamps, casts and tiny offsets, made the log's
    argument."""
    passed = (
        "clamp",
        "clamp_min",
        "clamp_max",
        "to_copy",
        "copy",
        "clone",
        "add",
        "rsub",
        "gather",
        "index",
        "squeeze",
        "slice",
        "max",
        "contiguous",
    )
    for op in birth.upstream:
        if op.short in PROBABILITIES:
            return "softmax"
        if op.short == "sigmoid":
            return "sigmoid"
        if op.short not in passed:
            return None
    return None
