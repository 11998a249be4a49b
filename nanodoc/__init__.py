"""nanodoc: a doctor for PyTorch training runs.

Importing this package does not import torch; a training script needs `Recipe`, or nothing, and may
use `probe`. In a notebook or a loop of one's own `watch` examines the training, and `examine` runs
a recipe, `merged` makes one report of several ranks'; those import torch when they are first asked
for.

Errors raised to callers:

    NanodocError            base; carries the exit code of the command line
    └── UsageError          bad entrypoint, config, option or file (exit code 2)
"""

from typing import TYPE_CHECKING, Any

from nanodoc._version import __version__
from nanodoc.errors import NanodocError, UsageError
from nanodoc.probing import probe
from nanodoc.recipe.recipe import Recipe

if TYPE_CHECKING:
    from nanodoc.in_code import examine, merged, watch

__all__ = [
    "NanodocError",
    "Recipe",
    "UsageError",
    "__version__",
    "examine",
    "merged",
    "probe",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in ("examine", "merged", "watch"):
        from nanodoc import in_code

        return getattr(in_code, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
