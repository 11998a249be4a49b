"""Sick training scripts, each with `sick()` and `healthy()`: what users write, not part of the
library."""
