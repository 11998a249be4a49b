"""Names as they stand in the source code of a training, where nothing says which library a name
belongs to: torch's, NumPy's and pandas' spellings side by side."""

from __future__ import annotations

from nanodoc.vocabulary.calls import FROM_ARRAYS, TRANSPOSES

MAKING_TENSORS = (*FROM_ARRAYS, "array", "FloatTensor", "LongTensor")
"""They make a tensor or an array of a list of numbers, or of another array."""

TRANSPOSING = (*TRANSPOSES, "swapaxes", "swapdims", "moveaxis", "T", "mT")
"""Methods and attributes that put dimensions in another order."""

CONVERTING = (
    *("to", "cpu", "cuda", "float", "double", "half", "long", "int", "astype", "numpy"),
    *("to_numpy", "clone", "copy", "contiguous", "pin_memory", "detach", "requires_grad_"),
)
"""Methods that give their object's values in another place, type or memory."""
