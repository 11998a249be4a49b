"""ND506–508, ND514–517: who owns which parameter, and who was meant to."""

from __future__ import annotations

import re

from nanodoc.facts.graph import OwnershipFacts
from nanodoc.facts.source import SourceSpan


def is_replaced(facts: OwnershipFacts) -> bool:
    """The optimizer holds tensors of the missing parameters' shapes that belong to nothing."""
    shapes = {p.shape for p in facts.stale}
    return bool(facts.stale) and (
        bool(facts.replaced_at) or any(p.shape in shapes for p in facts.missing)
    )


def meant_for(facts: OwnershipFacts) -> SourceSpan | None:
    """The line of the optimizer that the neglected parameters were meant for, of those whose
    parameters another one holds: the only one whose name has a word of the network's name,
    `optimizerG` of `netG`; else the one that was made last."""
    made = [at for at, shared in zip(facts.optimizers, facts.shared, strict=False) if shared and at]
    words = _words(facts.neglected[0].name.partition(".")[0])
    held = set[str]().union(
        *(_words(at.code.partition("=")[2].split(".parameters")[0]) for at in made)
    )
    named = [at for at in made if _words(at.code.partition("=")[0]) & words - held]
    if len(named) == 1:
        return named[0]
    return max(made, key=lambda at: at.line, default=None)


def _words(name: str) -> set[str]:
    """`optimizerG`, `opt_G`, `generator_optimizer`: their words, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
