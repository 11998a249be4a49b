"""The DataLoader behind what a recipe gives as its data."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from nanodoc.recipe.variables import variables_of
from nanodoc.trace.frame_variables import variables_of_frame


def loader_of(data: Any) -> Any:
    """The DataLoader that the data is, or that it holds: a wrapper's attribute, a variable that its
    iteration reads."""
    if isinstance(data, DataLoader):
        return data
    frame = getattr(data, "gi_frame", None)
    held = [*vars(data).values()] if hasattr(data, "__dict__") else []
    held += list(variables_of_frame(frame).values()) if frame is not None else []
    held += [value for _, _, value in variables_of(getattr(type(data), "__iter__", None))]
    return next((value for value in held if isinstance(value, DataLoader)), None)
