"""nanodoc: a doctor for PyTorch training runs.

Importing this package does not import torch; a training script needs `Recipe`, or nothing, and may
use `probe`.

Errors raised to callers:

    NanodocError            base; carries the exit code of the command line
    └── UsageError          bad entrypoint, config, option or file (exit code 2)
"""

from nanodoc._version import __version__
from nanodoc.errors import NanodocError, UsageError
from nanodoc.probing import probe
from nanodoc.recipe.recipe import Recipe

__all__ = ["NanodocError", "Recipe", "UsageError", "__version__", "probe"]
