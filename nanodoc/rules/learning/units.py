"""ND602–ND605, ND610, ND625, ND629: layers, units and parameters that do not learn."""

from __future__ import annotations

from nanodoc.facts.loop import ParameterStats

FEWEST_UNITS = 4


FEWEST_VALUES = 64  # per unit: a unit that is zero on a handful of samples is not dead


def shown_names(parameters: list[ParameterStats]) -> str:
    shown = ", ".join(p.name for p in parameters[:4])
    return shown + (f" and {len(parameters) - 4} more" if len(parameters) > 4 else "")
