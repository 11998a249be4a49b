"""ND506–508, ND514–517: who owns which parameter, and who was meant to."""

from __future__ import annotations

from nanodoc.facts.graph import (
    OwnedParameter,
    OwnershipFacts,
)


def neglected_parameters(facts: OwnershipFacts) -> list[OwnedParameter]:
    """Trainable parameters that receive gradients and that nothing updates."""
    return [p for p in facts.missing if p.gradient and not p.moved]


def is_replaced(facts: OwnershipFacts) -> bool:
    """The optimizer holds tensors of the missing parameters' shapes that belong to nothing."""
    shapes = {p.shape for p in facts.stale}
    return bool(facts.stale) and (
        bool(facts.replaced_at) or any(p.shape in shapes for p in facts.missing)
    )
