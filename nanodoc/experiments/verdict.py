"""What the pattern of the experiments says: precision, data, weights, the mathematics of an op, or
the environment."""

from __future__ import annotations

from nanodoc.facts.trials import (
    DATA,
    ENVIRONMENT,
    HARDLY_MOVED,
    MATHEMATICS,
    PRECISION,
    WEIGHTS,
    Growth,
    Pattern,
)


def read(pattern: Pattern, *, guilty: bool | None = None) -> tuple[str | None, str]:
    """(cause, why in one clause); (None, "") where the experiments don't decide. `guilty`: samples
    were found that fail alone while the others pass (None: not looked for)."""
    again, other, first = (
        pattern.passes("same-again"),
        pattern.passes("other-batch"),
        pattern.passes("first-weights"),
    )
    if again:
        return ENVIRONMENT, "the same step passes when re-run"
    # weights that hardly moved did not go wrong
    moved = pattern.growth is None or (pattern.growth.moved or 1.0) >= HARDLY_MOVED
    grew = pattern.growth is not None and pattern.growth.seen and moved
    slower = bool(pattern.course and pattern.course.passing())
    if grew and slower and other is not True and first is not False:
        return WEIGHTS, _growth(pattern.growth)
    exact = pattern.passes("float64")
    half = pattern.passes("autocast-off")
    if half:
        return PRECISION, "it passes with autocast off"
    if guilty:
        return DATA, "the batch without these samples passes" + (
            ", and so does another batch" if other else ""
        )
    if other:
        return DATA, "another batch passes with the same weights" + (
            ", and this one passes in float64" if exact else ""
        )
    if exact and not (grew and first):
        return PRECISION, "it passes in float64"
    if first and other is False and moved:
        return WEIGHTS, (
            "this batch passes with the weights of step 0, and another batch fails with these "
            "weights"
        )
    if other is False:
        return MATHEMATICS, "another batch fails too" + (
            ", and so does this one with the weights of step 0" if first is False else ""
        )
    return None, ""


def _growth(growth: Growth | None) -> str:
    assert growth is not None
    parts = []
    if growth.loss is not None and growth.loss > 2:
        parts.append(f"the loss had grown {growth.loss:.3g}-fold")
    if growth.norm is not None and growth.norm > 10:
        parts.append(f"the gradient norm {growth.norm:.3g}-fold")
    if growth.weights is not None and growth.weights > 3:
        parts.append(f"the weights {growth.weights:.3g}-fold")
    elif growth.fastest is not None and (growth.fastest_ratio or 0) > 30:
        parts.append(f"{growth.fastest} {growth.fastest_ratio:.3g}-fold")
    return ", ".join(parts) + ", and with smaller updates it stays finite"
